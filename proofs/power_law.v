(* Activation, metric tensor and power law (arXiv:2608.10288; the steps 3 to 5 of docs/operators.md). *)
From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp Require Import reals sequences exp.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section PowerLaw.
Variable R : realType.
Implicit Types (u x : R).

Definition sigmoid u : R := (1 + expR (- u))^-1.

(* iSwiGLU(u) = u² σ(u) *)
Definition iswiglu u : R := u ^+ 2 * sigmoid u.

Lemma sigmoid_gt0 u : 0 < sigmoid u.
Proof. by rewrite invr_gt0 addr_gt0 ?ltr01 ?expR_gt0. Qed.

(* Claim 1. The activation of the metric tensor is nonnegative ... *)
Theorem iswiglu_ge0 u : 0 <= iswiglu u.
Proof. by rewrite mulr_ge0 ?sqr_ge0 // ltW ?sigmoid_gt0. Qed.

(* ... and positive exactly off zero. *)
Theorem iswiglu_gt0 u : (0 < iswiglu u) = (u != 0).
Proof. by rewrite /iswiglu pmulr_lgt0 ?sigmoid_gt0 // lt0r sqrf_eq0 sqr_ge0 andbT. Qed.

Section Tensors.
Variable d : nat.
Implicit Types A W b P Q : 'M[R]_d.

(* A_LM = iSwiGLU(W A + b_W) + ε *)
Definition metric eps W b A : 'M[R]_d := \matrix_(i, j) (iswiglu ((W *m A + b) i j) + eps).

(* Claim 1. Every entry of A_LM is at least ε, whatever the weights and the generator. *)
Theorem metric_ge_eps eps W b A i j : eps <= metric eps W b A i j.
Proof. by rewrite mxE ler_addr iswiglu_ge0. Qed.

(* So with ε > 0 the power law below is taken of positive numbers alone. *)
Theorem metric_gt0 eps W b A : 0 < eps -> forall i j, 0 < metric eps W b A i j.
Proof. by move=> eps_gt0 i j; apply: lt_le_trans (metric_ge_eps eps W b A i j). Qed.

(* A_P = A^{⊙P}, entrywise with an exponent for every entry; a scalar α is the case P = const_mx α.
   [a `^ p] is exp (p ln a), which is a power for a > 0 only: the hypothesis of the theorems below. *)
Definition hpower P A : 'M[R]_d := \matrix_(i, j) (A i j `^ P i j).

(* Hadamard product *)
Definition hadamard A Q : 'M[R]_d := \matrix_(i, j) (A i j * Q i j).

Definition positive A := forall i j, 0 < A i j.

(* Claim 4. Hadamard powers of a positive matrix form a group under the Hadamard product, with the exponents added. *)
Theorem hpowerD P Q A : positive A -> hpower (P + Q) A = hadamard (hpower P A) (hpower Q A).
Proof. by move=> A_gt0; apply/matrixP => i j; rewrite !mxE exp_funD. Qed.

Theorem hpower0 A : positive A -> hpower 0 A = const_mx 1.
Proof. by move=> A_gt0; apply/matrixP => i j; rewrite !mxE exp_funr0. Qed.

Theorem hpower1 A : positive A -> hpower (const_mx 1) A = A.
Proof. by move=> A_gt0; apply/matrixP => i j; rewrite !mxE exp_funr1. Qed.

Theorem hpowerN P A : positive A -> hadamard (hpower P A) (hpower (- P) A) = const_mx 1.
Proof. by move=> A_gt0; rewrite -hpowerD // subrr hpower0. Qed.

Theorem hpower_positive P A : positive (hpower P A).
Proof. by move=> i j; rewrite mxE exp_fun_gt0. Qed.

(* A power of a power: the exponents multiply entrywise. *)
Theorem hpowerM P Q A : hpower P (hpower Q A) = hpower (hadamard P Q) A.
Proof. by apply/matrixP => i j; rewrite !mxE /exp_fun expK mulrA. Qed.

(* Integer exponents give the ordinary powers of the entries. *)
Theorem hpower_nat n A : positive A -> hpower (const_mx n%:R) A = \matrix_(i, j) (A i j ^+ n).
Proof. by move=> A_gt0; apply/matrixP => i j; rewrite !mxE exp_fun_mulrn. Qed.

(* G_LM = a A_P + b_a *)
Definition curvature (a b AP : 'M[R]_d) : 'M[R]_d := a *m AP + b.

(* The operator of one head, from the generator on. *)
Definition operator eps W bW P a ba A : 'M[R]_d := curvature a ba (hpower P (metric eps W bW A)).

(* Claim f. The adoption theorem: with a = 0 and b_a = I the operator is the identity, whatever the generator and the other
   parameters. That attention with G = I is SDPA is [plga_identity_is_sdpa] in attention.v. *)
Theorem operator_adopted eps W bW P A : operator eps W bW P 0 1%:M A = 1%:M.
Proof. by rewrite /operator /curvature mul0mx add0r. Qed.

End Tensors.
End PowerLaw.
