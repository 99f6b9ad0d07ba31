(* Matrices whose rows are all the same: what the generator becomes at a collapse (arXiv:2608.10288). *)
From mathcomp Require Import all_ssreflect all_algebra.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import GRing.Theory.
Local Open Scope ring_scope.

Section IdenticalRows.
Variables (F : fieldType) (n : nat).
Implicit Types (r : 'rV[F]_n.+1) (A : 'M[F]_n.+1).

Definition identical_rows A := forall i k, row i A = row k A.

Definition ones : 'cV[F]_n.+1 := const_mx 1.
Definition row_sum r : F := \sum_j r 0 j.

(* Claim 5. Such a matrix is the outer product of the ones and its row, ... *)
Theorem identical_rowsP A : identical_rows A <-> exists r, A = ones *m r.
Proof.
split=> [same|[r ->] i k]; last first.
  by apply/rowP => j; rewrite !mxE !big_ord1 !mxE.
by exists (row 0 A); apply/row_matrixP => i; rewrite row_mul (same i 0); apply/rowP => j; rewrite !mxE big_ord1 !mxE mul1r.
Qed.

Lemma ones_neq0 : ones != 0.
Proof. by apply/negP => /eqP/colP/(_ 0); rewrite !mxE; apply/eqP/oner_neq0. Qed.

Lemma ones_mul_eq0 r : (ones *m r == 0) = (r == 0).
Proof.
apply/eqP/eqP => [zero|->]; last by rewrite mulmx0.
by apply/rowP => j; have /matrixP/(_ 0 j) := zero; rewrite !mxE big_ord1 !mxE mul1r.
Qed.

(* ... so it has rank at most one, ... *)
Theorem identical_rows_rank_le1 A : identical_rows A -> (\rank A <= 1)%N.
Proof.
by move/identical_rowsP => [r ->]; apply: leq_trans (mxrankM_maxl _ _) (rank_leq_col _).
Qed.

(* ... exactly one where it is not zero, ... *)
Theorem identical_rows_rank1 A : identical_rows A -> (\rank A == 1%N) = (A != 0).
Proof.
move=> /identical_rows_rank_le1; rewrite -mxrank_eq0.
by case: (\rank A) => [|[|k]].
Qed.

(* ... and determinant 0 from width 2 upward. *)
Theorem identical_rows_det0 A : (0 < n)%N -> identical_rows A -> \det A = 0.
Proof.
move=> n_gt0 /identical_rows_rank_le1 rank1; apply/eqP; apply: contraTT isT => det_neq0.
have : A \in unitmx by rewrite unitmxE unitfE.
by move/mxrank_unit => full; move: rank1; rewrite full ltnNge n_gt0.
Qed.

(* The ones are an eigenvector, the sum of a row its eigenvalue. *)
Theorem identical_rows_eigen r : (ones *m r) *m ones = row_sum r *: ones.
Proof.
apply/colP => i; rewrite !mxE; rewrite /row_sum mulr1; apply: eq_bigr => j _.
by rewrite !mxE big_ord1 !mxE mul1r mulr1.
Qed.

Theorem identical_rows_trace r : \tr (ones *m r) = row_sum r.
Proof. by apply: eq_bigr => i _; rewrite !mxE big_ord1 !mxE mul1r. Qed.

(* The powers of the matrix are multiples of it. *)
Theorem identical_rows_power r k : (ones *m r) ^+ k.+1 = row_sum r ^+ k *: (ones *m r).
Proof.
elim: k => [|k IH]; first by rewrite expr1 expr0 scale1r.
rewrite exprSr IH -mulmxE -scalemxAl mulmxA identical_rows_eigen.
by rewrite -scalemxAl scalerA -exprSr.
Qed.

(* It is nilpotent exactly where its row sum is zero, and then its square is zero. *)
Theorem identical_rows_nilpotent r : r != 0 -> (exists k, (ones *m r) ^+ k = 0) <-> row_sum r = 0.
Proof.
move=> r_neq0; split=> [[[|k]]|sum0].
- by move/eqP; rewrite expr0 oner_eq0.
- rewrite identical_rows_power => /eqP.
  by rewrite scaler_eq0 ones_mul_eq0 (negbTE r_neq0) orbF expf_eq0 => /andP[_ /eqP].
- by exists 2%N; rewrite identical_rows_power sum0 expr1 scale0r.
Qed.

End IdenticalRows.
