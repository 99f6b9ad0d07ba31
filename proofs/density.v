(* Density operator D = qᵀ q of one head (arXiv:2608.10288), over the real tokens of a sequence. *)
From mathcomp Require Import all_ssreflect all_algebra.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Density.
Variables (R : realFieldType) (S d : nat).
Implicit Types (Q : 'M[R]_(S, d)) (v : 'cV[R]_d).

(* Rows of Q are the queries of the tokens. *)
Definition density Q : 'M[R]_d := Q^T *m Q.

Definition norm2 n (w : 'cV[R]_n) : R := \sum_i w i 0 ^+ 2.

Lemma norm2_ge0 n (w : 'cV[R]_n) : 0 <= norm2 w.
Proof. by apply: sumr_ge0 => i _; apply: sqr_ge0. Qed.

Lemma norm2_eq0 n (w : 'cV[R]_n) : norm2 w = 0 -> w = 0.
Proof.
move/eqP; rewrite psumr_eq0 => [/allP w0|i _]; last exact: sqr_ge0.
apply/colP => i; rewrite mxE; apply/eqP.
by have := w0 i (mem_index_enum i); rewrite sqrf_eq0.
Qed.

(* Claim 3. D is the sum of q_sᵀ q_s over the tokens, ... *)
Theorem densityE Q : density Q = \sum_s (row s Q)^T *m row s Q.
Proof.
apply/matrixP => i j; rewrite !mxE summxE; apply: eq_bigr => s _.
by rewrite !mxE big_ord1 !mxE.
Qed.

(* ... symmetric, ... *)
Theorem density_sym Q : (density Q)^T = density Q.
Proof. by rewrite /density trmx_mul trmxK. Qed.

(* ... its quadratic form is ‖Q v‖², ... *)
Theorem density_form Q v : (v^T *m density Q *m v) 0 0 = norm2 (Q *m v).
Proof.
rewrite /density mulmxA -mulmxA -trmx_mul mxE /norm2.
by apply: eq_bigr => i _; rewrite mxE expr2.
Qed.

(* ... so it is positive semidefinite, ... *)
Theorem density_psd Q v : 0 <= (v^T *m density Q *m v) 0 0.
Proof. by rewrite density_form norm2_ge0. Qed.

(* ... it sends v to 0 only where Q does, ... *)
Theorem density_ker Q v : density Q *m v = 0 <-> Q *m v = 0.
Proof.
split=> [Dv|Qv]; last by rewrite /density -mulmxA Qv mulmx0.
by apply: norm2_eq0; rewrite -density_form -mulmxA Dv mulmx0 mxE.
Qed.

(* ... and its rank is that of Q, so at most the number of tokens and the width. *)
Theorem density_rank Q : \rank (density Q) = \rank Q.
Proof.
rewrite /density -[in RHS]mxrank_tr; apply/mxrank_injP; rewrite -submx0.
apply/rV_subP => u; rewrite sub_capmx => /andP[/submxP[w ->] /sub_kermxP wQQ].
suff -> : w *m Q^T = 0 by rewrite sub0mx.
apply: trmx_inj; rewrite trmx_mul trmxK trmx0; apply/density_ker.
by apply: trmx_inj; rewrite trmx0 trmx_mul density_sym trmxK /density mulmxA.
Qed.

Theorem density_rank_le Q : (\rank (density Q) <= minn S d)%N.
Proof. by rewrite density_rank leq_min rank_leq_row rank_leq_col. Qed.

(* Padding never enters: with the rows of padded positions set to zero, D is the sum over the real tokens alone. *)
Definition unpadded (real : pred 'I_S) Q : 'M[R]_(S, d) := \matrix_(s, i) (Q s i *+ real s).

Theorem density_padding (real : pred 'I_S) Q :
  density (unpadded real Q) = \sum_(s | real s) (row s Q)^T *m row s Q.
Proof.
rewrite densityE (bigID real) /= [X in _ + X]big1 ?addr0 => [|s /negbTE pad].
  apply: eq_bigr => s real_s; suff -> : row s (unpadded real Q) = row s Q by [].
  by apply/rowP => i; rewrite !mxE real_s.
suff -> : row s (unpadded real Q) = 0 by rewrite mulmx0.
by apply/rowP => i; rewrite !mxE pad.
Qed.

End Density.
