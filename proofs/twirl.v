(* Twirl: the mean of a rotating component over N positions (arXiv:2608.10288). A complex number is a pair of reals. *)
From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp Require Import reals trigo.
From mathcomp.algebra_tactics Require Import ring.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Twirl.
Variable R : realType.
Implicit Types (w x y : R) (N : nat).

(* |x + i y| *)
Definition modulus x y : R := Num.sqrt (x ^+ 2 + y ^+ 2).

(* Claim 8. |1 - e^{iω}| = 2 |sin(ω/2)|. *)
Theorem chord w : modulus (1 - cos w) (- sin w) = 2%:R * `|sin (w / 2%:R)|.
Proof.
rewrite /modulus; have -> : (1 - cos w) ^+ 2 + (- sin w) ^+ 2 = (2%:R * sin (w / 2%:R)) ^+ 2.
  have -> : (1 - cos w) ^+ 2 + (- sin w) ^+ 2 = 1 - 2%:R * cos w + (cos w ^+ 2 + sin w ^+ 2) by ring.
  have {1}-> : w = (w / 2%:R) *+ 2 by rewrite -mulr_natr divfK // pnatr_eq0.
  by rewrite cos2Dsin2 cos_mulr2n cos2sin2; ring.
by rewrite sqrtr_sqr normrM ger0_norm ?ler0n.
Qed.

(* Σ_{k<N} e^{ikω}, real and imaginary part. *)
Definition geometric_re w N : R := \sum_(k < N) cos (k%:R * w).
Definition geometric_im w N : R := \sum_(k < N) sin (k%:R * w).

Lemma angle_half w k : k.+1%:R * w - w / 2%:R = k%:R * w + w / 2%:R.
Proof. by rewrite -addn1 natrD; field. Qed.

(* sin(ω/2) Σ_{k<N} e^{ikω} = sin(Nω/2) e^{i(N-1)ω/2} *)
Lemma geometric_reE w N :
  sin (w / 2%:R) * geometric_re w N = sin (N%:R * w / 2%:R) * cos (N%:R * w / 2%:R - w / 2%:R).
Proof.
suff : 2%:R * (sin (w / 2%:R) * geometric_re w N) = sin (N%:R * w - w / 2%:R) + sin (w / 2%:R).
  have two : 2%:R != 0 :> R by rewrite pnatr_eq0.
  move=> eq2; apply: (mulfI two); rewrite eq2; set a := N%:R * w / 2%:R; set b := w / 2%:R.
  have -> : N%:R * w - b = (a - b) + a by rewrite /a /b; field.
  have -> : sin b = sin (a - (a - b)) by congr sin; ring.
  by rewrite sinD [sin (a - (a - b))]sinB; ring.
elim: N => [|N IH].
  by rewrite /geometric_re big_ord0 !mulr0 mul0r sub0r sinN addNr.
rewrite /geometric_re big_ord_recr /= -/(geometric_re w N) !mulrDr IH angle_half (sinD _ (w / 2%:R)) (sinB _ (w / 2%:R)).
by ring.
Qed.

Lemma geometric_imE w N :
  sin (w / 2%:R) * geometric_im w N = sin (N%:R * w / 2%:R) * sin (N%:R * w / 2%:R - w / 2%:R).
Proof.
suff : 2%:R * (sin (w / 2%:R) * geometric_im w N) = cos (w / 2%:R) - cos (N%:R * w - w / 2%:R).
  have two : 2%:R != 0 :> R by rewrite pnatr_eq0.
  move=> eq2; apply: (mulfI two); rewrite eq2; set a := N%:R * w / 2%:R; set b := w / 2%:R.
  have -> : N%:R * w - b = (a - b) + a by rewrite /a /b; field.
  have -> : cos b = cos (a - (a - b)) by congr cos; ring.
  by rewrite [cos (a - (a - b))]cosB [cos (a - b + a)]cosD; ring.
elim: N => [|N IH].
  by rewrite /geometric_im big_ord0 !mulr0 mul0r sub0r cosN subrr.
rewrite /geometric_im big_ord_recr /= -/(geometric_im w N) !mulrDr IH angle_half (cosD _ (w / 2%:R)) (cosB _ (w / 2%:R)).
by ring.
Qed.

(* Claim 8. The geometric sum, exactly, ... *)
Theorem geometric_modulus w N :
  `|sin (w / 2%:R)| * modulus (geometric_re w N) (geometric_im w N) = `|sin (N%:R * w / 2%:R)|.
Proof.
rewrite /modulus -sqrtr_sqr -sqrtrM ?sqr_ge0 // mulrDr -!exprMn geometric_reE geometric_imE !exprMn -mulrDr.
by rewrite cos2Dsin2 mulr1 sqrtr_sqr.
Qed.

(* ... so it stays below 1 / |sin(ω/2)|, however many positions there are, ... *)
Theorem geometric_bound w N : sin (w / 2%:R) != 0 ->
  modulus (geometric_re w N) (geometric_im w N) <= `|sin (w / 2%:R)|^-1.
Proof.
move=> sin_neq0; rewrite -[_^-1]mul1r ler_pdivl_mulr ?normr_gt0 //.
by rewrite mulrC geometric_modulus sin_max.
Qed.

(* ... and the mean over N positions, a multiplier of the twirl, decays as 1/N. *)
Theorem twirl_bound w N : sin (w / 2%:R) != 0 -> (0 < N)%N ->
  modulus (geometric_re w N) (geometric_im w N) / N%:R <= (N%:R * `|sin (w / 2%:R)|)^-1.
Proof.
move=> sin_neq0 N_gt0; rewrite invfM mulrC ler_wpmul2l ?invr_ge0 ?ler0n //.
exact: geometric_bound.
Qed.

(* Where ω is a multiple of 2π nothing decays: every term is 1. *)
Theorem twirl_resonant w N : cos w = 1 -> geometric_re w N = N%:R /\ geometric_im w N = 0.
Proof.
move=> cos1; have sin0w : sin w = 0.
  by have := sin2cos2 w; rewrite cos1 expr1n subrr => /eqP; rewrite sqrf_eq0 => /eqP.
have all k : cos (k%:R * w) = 1 /\ sin (k%:R * w) = 0.
  elim: k => [|k [ck sk]]; first by rewrite mul0r cos0 sin0.
  by rewrite -addn1 natrD mulrDl mul1r cosD sinD ck sk cos1 sin0w !mul0r ?mulr0 ?mul1r subr0 ?addr0.
rewrite /geometric_re /geometric_im; split.
  by rewrite (eq_bigr (fun=> 1)) => [|k _]; [rewrite sumr_const card_ord | case: (all k)].
by apply: big1 => k _; case: (all k).
Qed.

End Twirl.
