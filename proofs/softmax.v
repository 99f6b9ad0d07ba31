(* Softmax and masked softmax (arXiv:2608.10288). *)
From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp Require Import reals sequences exp.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Softmax.
Variables (R : realType) (T : finType).
Implicit Types (m : pred T) (x y : T -> R) (i j : T).

(* Normalizer and weights over the positions that the mask m allows; with m = predT this is the ordinary softmax. *)
Definition normalizer m x : R := \sum_(j | m j) expR (x j).
Definition softmax m x i : R := if m i then expR (x i) / normalizer m x else 0.

Lemma normalizer_gt0 m x i : m i -> 0 < normalizer m x.
Proof.
move=> mi; rewrite /normalizer (bigD1 i) //= ltr_spaddl ?expR_gt0 //.
by apply: sumr_ge0 => j _; apply/ltW/expR_gt0.
Qed.

(* Claim 2. Positive on the support, ... *)
Theorem softmax_gt0 m x i : m i -> 0 < softmax m x i.
Proof. by move=> mi; rewrite /softmax mi divr_gt0 ?expR_gt0 ?(normalizer_gt0 _ mi). Qed.

(* ... zero off it, ... *)
Theorem softmax_off m x i : ~~ m i -> softmax m x i = 0.
Proof. by rewrite /softmax => /negbTE ->. Qed.

(* ... and summing to one as soon as one position is allowed. *)
Theorem softmax_sum1 m x i : m i -> \sum_j softmax m x j = 1.
Proof.
move=> mi; rewrite /softmax -big_mkcond /= -mulr_suml divff //.
by rewrite gt_eqF ?(normalizer_gt0 _ mi).
Qed.

Theorem softmax_le1 m x i : softmax m x i <= 1.
Proof.
have [mi|mi] := boolP (m i); last by rewrite softmax_off ?ler01.
rewrite -(softmax_sum1 x mi) (bigD1 i) //= ler_addl; apply: sumr_ge0 => j _.
by have [mj|mj] := boolP (m j); [apply/ltW/softmax_gt0 | rewrite softmax_off].
Qed.

(* Only the scores on the support matter. *)
Theorem eq_softmax m x y : (forall i, m i -> x i = y i) -> softmax m x =1 softmax m y.
Proof.
move=> xy i; rewrite /softmax; case: ifP => // mi; rewrite (xy _ mi).
by congr (_ / _); apply: eq_bigr => j mj; rewrite (xy _ mj).
Qed.

(* Claim 2. A shift of all scores by one number changes nothing. *)
Theorem softmax_shift m x (c : R) : softmax m (fun j => x j + c) =1 softmax m x.
Proof.
move=> i; rewrite /softmax; case: ifP => // mi.
have -> : normalizer m (fun j => x j + c) = normalizer m x * expR c.
  by rewrite /normalizer mulr_suml; apply: eq_bigr => j _; rewrite expRD.
by rewrite expRD -mulf_div divff ?mulr1 // gt_eqF ?expR_gt0.
Qed.

(* Claim 2, converse. Two score vectors with the same weights differ on the support by one number. *)
Theorem softmax_shift_conv m x y :
  (forall i, m i -> softmax m x i = softmax m y i) -> exists c, forall i, m i -> x i = y i + c.
Proof.
move=> same; exists (ln (normalizer m x) - ln (normalizer m y)) => i mi.
have := same i mi; rewrite /softmax mi => eq_weights.
have {eq_weights}: ln (expR (x i) / normalizer m x) = ln (expR (y i) / normalizer m y) by rewrite eq_weights.
rewrite !ln_div ?posrE ?expR_gt0 ?(normalizer_gt0 _ mi) // !expK => /eqP.
rewrite subr_eq => /eqP ->; rewrite [_ - ln (normalizer m y)]addrC -!addrA.
by rewrite addrCA; congr (_ + _); rewrite addrC.
Qed.

(* Both directions at once: the weights determine the scores on the support up to a common shift, and nothing else. *)
Theorem softmax_eq_iff m x y :
  (forall i, m i -> softmax m x i = softmax m y i) <-> exists c, forall i, m i -> x i = y i + c.
Proof.
split; first exact: softmax_shift_conv.
move=> [c xy] i mi; rewrite -(softmax_shift m y c); exact: eq_softmax.
Qed.

End Softmax.
