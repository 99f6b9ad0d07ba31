(* LayerNorm without gain and bias, with ε in the variance (arXiv:2608.10288). *)
From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp.algebra_tactics Require Import ring.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section LayerNorm.
Variables (R : rcfType) (n : nat).
Local Notation d := n.+1.
Implicit Types (x y : 'rV[R]_d) (c a b eps : R).

Definition mean x : R := (\sum_i x 0 i) / d%:R.
Definition variance x : R := (\sum_i (x 0 i - mean x) ^+ 2) / d%:R.
Definition layer_norm eps x : 'rV[R]_d := \row_i ((x 0 i - mean x) / Num.sqrt (variance x + eps)).

Lemma width_gt0 : 0 < d%:R :> R. Proof. by rewrite ltr0n. Qed.
Lemma width_neq0 : d%:R != 0 :> R. Proof. by rewrite pnatr_eq0. Qed.

Lemma variance_ge0 x : 0 <= variance x.
Proof. by rewrite divr_ge0 ?ler0n //; apply: sumr_ge0 => i _; apply: sqr_ge0. Qed.

Lemma mean_shift x c : mean (x + const_mx c) = mean x + c.
Proof.
rewrite /mean -[X in _ = _ + X](mulfK width_neq0) -mulrDl; congr (_ / _).
rewrite (eq_bigr (fun i => x 0 i + c)) => [|i _]; last by rewrite !mxE.
by rewrite big_split /= sumr_const card_ord mulr_natr.
Qed.

Lemma mean_scale x c : mean (c *: x) = c * mean x.
Proof. by rewrite /mean mulrA mulr_sumr; congr (_ / _); apply: eq_bigr => i _; rewrite mxE. Qed.

Lemma variance_shift x c : variance (x + const_mx c) = variance x.
Proof.
congr (_ / _); apply: eq_bigr => i _; rewrite mean_shift !mxE.
by congr (_ ^+ 2); rewrite opprD addrACA subrr addr0.
Qed.

Lemma variance_scale x c : variance (c *: x) = c ^+ 2 * variance x.
Proof.
rewrite /variance mulrA mulr_sumr; congr (_ / _); apply: eq_bigr => i _.
by rewrite mean_scale !mxE -mulrBr exprMn.
Qed.

(* Claim 6. A shift of all entries by one number changes nothing. *)
Theorem layer_norm_shift eps x c : layer_norm eps (x + const_mx c) = layer_norm eps x.
Proof.
apply/rowP => i; rewrite [LHS]mxE [RHS]mxE mean_shift variance_shift !mxE.
by congr (_ / _); rewrite opprD addrACA subrr addr0.
Qed.

(* A scale c > 0 turns ε into ε / c², ... *)
Theorem layer_norm_scale eps x c : 0 < c -> layer_norm eps (c *: x) = layer_norm (eps / c ^+ 2) x.
Proof.
move=> c_gt0; have c_neq0 : c != 0 by rewrite gt_eqF.
apply/rowP => i; rewrite !mxE mean_scale variance_scale -mulrBr.
have -> : c ^+ 2 * variance x + eps = c ^+ 2 * (variance x + eps / c ^+ 2).
  by rewrite mulrDr [c ^+ 2 * (eps / _)]mulrC divfK // sqrf_eq0.
by rewrite sqrtrM ?sqr_ge0 // sqrtr_sqr gtr0_norm // -mulf_div mulfV ?mul1r.
Qed.

(* ... so at ε = 0 it changes nothing either. *)
Theorem layer_norm_scale0 x c : 0 < c -> layer_norm 0 (c *: x) = layer_norm 0 x.
Proof. by move=> c_gt0; rewrite layer_norm_scale // mul0r. Qed.

(* The entries of the result sum to zero, ... *)
Theorem layer_norm_sum eps x : \sum_i layer_norm eps x 0 i = 0.
Proof.
rewrite (eq_bigr (fun i => (x 0 i - mean x) / Num.sqrt (variance x + eps))) => [|i _]; last by rewrite mxE.
rewrite -mulr_suml sumrB sumr_const card_ord -mulr_natr /mean mulfVK ?width_neq0 //.
by rewrite subrr mul0r.
Qed.

(* ... and their squares to d · variance / (variance + ε): the norm identity. *)
Theorem layer_norm_norm eps x : 0 < variance x + eps ->
  \sum_i layer_norm eps x 0 i ^+ 2 = d%:R * (variance x / (variance x + eps)).
Proof.
move=> pos; rewrite [in RHS]mulrA [d%:R * _]mulrC /variance mulfVK ?width_neq0 // mulr_suml -/(variance x).
by apply: eq_bigr => i _; rewrite mxE expr_div_n sqr_sqrtr // ltW.
Qed.

Theorem layer_norm_norm_le eps x : 0 <= eps -> 0 < variance x + eps -> \sum_i layer_norm eps x 0 i ^+ 2 <= d%:R.
Proof.
move=> eps_ge0 pos; rewrite layer_norm_norm // ler_pimulr ?ler0n //.
by rewrite ler_pdivr_mulr // mul1r ler_addl.
Qed.

Lemma sqrt_diff (v a b : R) : 0 < v -> 0 <= a -> 0 <= b ->
  v * ((Num.sqrt (v + a))^-1 - (Num.sqrt (v + b))^-1) ^+ 2 <= ((a - b) / (2%:R * v)) ^+ 2.
Proof.
move=> v_gt0 a_ge0 b_ge0.
have va_gt0 : 0 < v + a by rewrite ltr_paddr.
have vb_gt0 : 0 < v + b by rewrite ltr_paddr.
set p := Num.sqrt (v + a); set q := Num.sqrt (v + b).
have p_gt0 : 0 < p by rewrite sqrtr_gt0.
have q_gt0 : 0 < q by rewrite sqrtr_gt0.
have p2 : p ^+ 2 = v + a by rewrite sqr_sqrtr // ltW.
have q2 : q ^+ 2 = v + b by rewrite sqr_sqrtr // ltW.
have -> : a - b = (p - q) * (p + q) by rewrite -subr_sqr p2 q2 opprD addrACA subrr add0r.
have -> : v * (p^-1 - q^-1) ^+ 2 = (p - q) ^+ 2 * (v / (p * q) ^+ 2) by field; rewrite !gt_eqF.
have -> : ((p - q) * (p + q) / (2%:R * v)) ^+ 2 = (p - q) ^+ 2 * ((p + q) ^+ 2 / (2%:R * v) ^+ 2).
  by field; rewrite gt_eqF.
apply: ler_wpmul2l; first exact: sqr_ge0.
have pq : v <= p * q.
  rewrite -(@ler_pexpn2r _ 2) ?nnegrE ?(ltW v_gt0) ?(ltW (mulr_gt0 p_gt0 q_gt0)) // exprMn p2 q2 expr2.
  by apply: ler_pmul; rewrite ?(ltW v_gt0) // ler_addl.
have sum : 4%:R * v <= (p + q) ^+ 2.
  have -> : (p + q) ^+ 2 = p ^+ 2 + q ^+ 2 + 2%:R * (p * q) by ring.
  rewrite p2 q2; have -> : 4%:R * v = v + v + 2%:R * v by ring.
  by apply: ler_add; [apply: ler_add; rewrite ler_addl | rewrite ler_pmul2l // ltr0n].
rewrite ler_pdivl_mulr ?exprn_gt0 ?mulr_gt0 ?ltr0n // mulrAC ler_pdivr_mulr ?exprn_gt0 ?mulr_gt0 //.
have -> : v * (2%:R * v) ^+ 2 = v ^+ 2 * (4%:R * v) by ring.
rewrite [X in _ <= X]mulrC; apply: ler_pmul => //; rewrite ?sqr_ge0 //; first by rewrite mulr_ge0 ?ler0n // ltW.
by rewrite ler_pexpn2r // nnegrE ltW ?mulr_gt0.
Qed.

(* What ε is worth: two values of it move the result by at most √d |a - b| / (2 variance), in the Euclidean norm. *)
Theorem layer_norm_eps x a b : 0 < variance x -> 0 <= a -> 0 <= b ->
  \sum_i (layer_norm a x 0 i - layer_norm b x 0 i) ^+ 2 <= d%:R * ((a - b) / (2%:R * variance x)) ^+ 2.
Proof.
move=> v_gt0 a_ge0 b_ge0.
apply: le_trans (ler_wpmul2l (ler0n _ _) (sqrt_diff v_gt0 a_ge0 b_ge0)).
rewrite mulrA [d%:R * _]mulrC [in X in _ <= X * _]/variance mulfVK ?width_neq0 // mulr_suml.
by apply: ler_sum => i _; rewrite !mxE -mulrBr exprMn.
Qed.

(* Claim b. The scale error of ε-LayerNorm: ‖LN(c x) - LN(x)‖ ≤ √d ε |1/c² - 1| / (2 variance). *)
Theorem layer_norm_scale_error eps x c : 0 < c -> 0 <= eps -> 0 < variance x ->
  \sum_i (layer_norm eps (c *: x) 0 i - layer_norm eps x 0 i) ^+ 2
    <= d%:R * (eps * ((c ^+ 2)^-1 - 1) / (2%:R * variance x)) ^+ 2.
Proof.
move=> c_gt0 eps_ge0 v_gt0; rewrite layer_norm_scale // mulrBr mulr1.
by apply: layer_norm_eps => //; rewrite divr_ge0 // sqr_ge0.
Qed.

End LayerNorm.
