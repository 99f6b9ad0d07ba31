(* Greedy decoding: the margin criterion, and the runtime guard of a collapsed model (arXiv:2608.10288; docs/guard.md). *)
From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp.algebra_tactics Require Import ring.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Greedy.
Variables (R : realFieldType) (n : nat).
Local Notation Token := 'I_n.+1.
Local Notation Logits := (Token -> R).
Implicit Types (l c : Logits) (i j : Token) (delta : R).

(* A token with the largest logit; which one of several that tie is left open, but fixed. *)
Definition greedy l : Token := [arg max_(i > ord0) l i]%O.

(* No logit differs by more than delta: ‖l - c‖∞ ≤ delta. *)
Definition within delta l c := forall i, `|l i - c i| <= delta.

(* The best logit exceeds every other by at least m. *)
Definition margin_at_least m l := forall j, j != greedy l -> m <= l (greedy l) - l j.

Lemma greedy_max l j : l j <= l (greedy l).
Proof. by rewrite /greedy; case: Order.TotalTheory.arg_maxP => // i _; apply. Qed.

Lemma eq_greedy l c : l =1 c -> greedy l = greedy c.
Proof.
move=> same; rewrite /greedy /Order.arg_max /extremum; congr odflt; apply: eq_pick => i /=.
by apply: eq_forallb => j; rewrite !same.
Qed.

Lemma greedy_unique l i : (forall j, j != i -> l j < l i) -> greedy l = i.
Proof.
move=> best; apply/eqP; apply: contraT => /best; rewrite ltNge greedy_max.
by [].
Qed.

(* Claim g. The greedy margin criterion: 2 ‖l - c‖∞ < margin of l, then c has the same greedy token, and no tie. *)
Theorem greedy_margin l c delta m :
  within delta l c -> margin_at_least m l -> 2%:R * delta < m -> greedy c = greedy l.
Proof.
move=> near marg small; apply: greedy_unique => j /marg gap.
have := near (greedy l); have := near j; rewrite !ler_distl => /andP[low_j _] /andP[_ high].
have : 0 < (l (greedy l) - delta) - (l j + delta).
  have -> : l (greedy l) - delta - (l j + delta) = (l (greedy l) - l j) - 2%:R * delta by ring.
  by rewrite subr_gt0; apply: lt_le_trans gap.
rewrite subr_gt0 => between.
apply: (@le_lt_trans _ _ (l j + delta)); first by rewrite -ler_subl_addr.
by apply: lt_le_trans between _; rewrite ler_subl_addr.
Qed.

End Greedy.

(* The strict inequality is needed: at 2 ‖l - c‖∞ = margin the other may tie. *)
Theorem greedy_margin_sharp (R : realFieldType) : exists l c : 'I_2 -> R,
  [/\ within 1 l c, margin_at_least 2%:R l & c 0 = c 1].
Proof.
exists (fun i => (i == 0)%:R *+ 2), (fun=> 1).
have best : greedy (fun i : 'I_2 => (i == 0)%:R *+ 2 : R) = 0.
  by apply: greedy_unique => j /negbTE ->; rewrite eqxx mul0rn ltr0n.
split=> // [i|j]; first by case: (i == 0); rewrite ?mul0rn ?sub0r ?normrN1 // mulr2n addrK normr1.
by rewrite best => /negbTE ->; rewrite eqxx mul0rn subr0.
Qed.

(* ---- The guard. It is the loop of plga/model/guard.py, for one sequence. *)

Section Guard.
Variables (R : realFieldType) (n : nat).
Local Notation Token := 'I_n.+1.
Local Notation Text := (seq Token).
Local Notation Logits := (Token -> R).

(* Logits of the next token after a text: with the operator rebuilt from it, and with the constant; and the relative
   deviation of the rebuilt operator from the constant. *)
Variables (learned constant : Text -> Logits) (operator_deviation : Text -> R).

Record settings := Settings { every : nat; margin_factor : R; deviation : R; tolerance : R }.
Record state := State { fallen : bool; unchecked : nat }.

Variable s : settings.

(* The two best logits of the constant are closer than margin_factor * deviation. *)
Definition close text : bool :=
  [exists j, (j != greedy (constant text)) &&
             (constant text (greedy (constant text)) - constant text j < margin_factor s * deviation s)].

Definition due st text : bool := [|| close text, fallen st | (every s <= unchecked st)%N].

(* State and token of one step. *)
Definition guard_step st text : state * Token :=
  if due st text then
    let falls := tolerance s < operator_deviation text in
    (State falls 1, greedy (if falls then learned text else constant text))
  else (State (fallen st) (unchecked st).+1, greedy (constant text)).

Fixpoint guarded k st text : Text :=
  if k is k'.+1 then let: (st', token) := guard_step st text in guarded k' st' (rcons text token) else text.

Fixpoint recompute k text : Text :=
  if k is k'.+1 then recompute k' (rcons text (greedy (learned text))) else text.

(* The step of the guard writes the token of the learned operator under two hypotheses on this text:
   - where a check finds the operator within the tolerance, the logits of the constant are those of the learned one;
   - where none is due, the logits deviate by less than [deviation] (a number measured on other texts). *)
Definition sound_on text :=
  (operator_deviation text <= tolerance s -> constant text =1 learned text) /\
  (~~ close text -> exists2 delta, delta < deviation s & within delta (constant text) (learned text)).

Lemma guard_step_learned st text : 2%:R <= margin_factor s -> 0 <= deviation s -> sound_on text ->
  (guard_step st text).2 = greedy (learned text).
Proof.
move=> factor dev_ge0 [checked free]; rewrite /guard_step; case: ifP => [_ /=|/norP[not_close _]].
  by case: ltP => // /checked same; apply: eq_greedy.
have [delta lt_dev near] := free not_close; symmetry.
apply: (greedy_margin near (m := margin_factor s * deviation s)) => [j neq|].
  by move: not_close; rewrite /close negb_exists => /forallP/(_ j); rewrite neq /= -leNgt.
apply: (@lt_le_trans _ _ (2%:R * deviation s)); first by rewrite ltr_pmul2l ?ltr0n.
by rewrite ler_wpmul2r.
Qed.

(* Claim i. Where every step is sound, guarded decoding writes the text of the recomputed operator. *)
Theorem guarded_is_recompute k st text : 2%:R <= margin_factor s -> 0 <= deviation s ->
  (forall i, (i < k)%N -> sound_on (recompute i text)) -> guarded k st text = recompute k text.
Proof.
move=> factor dev_ge0; elim: k st text => //= k IH st text sound.
have /= := guard_step_learned st factor dev_ge0 (sound 0%N isT).
case: (guard_step st text) => st' token /= ->.
by apply: IH => i lt_ik; apply: (sound i.+1).
Qed.

(* Claim i. So with tolerance 0, where equal operators give equal logits (the collapse theorem of attention.v), what is left to
   assume is that the deviation was measured large enough for the texts that are written. *)
Theorem guarded_exactly k st text : 2%:R <= margin_factor s -> tolerance s = 0 ->
  (forall t, 0 <= operator_deviation t) -> (forall t, operator_deviation t = 0 -> constant t =1 learned t) ->
  (forall i, (i < k)%N ->
     exists2 delta, delta < deviation s & within delta (constant (recompute i text)) (learned (recompute i text))) ->
  0 <= deviation s -> guarded k st text = recompute k text.
Proof.
move=> factor tol dev_ge0 equal near pos; apply: guarded_is_recompute => // i lt_ik; split=> [|_]; last exact: near.
by rewrite tol => le0; apply: equal; apply/eqP; rewrite eq_le le0 dev_ge0.
Qed.

(* Claim i. A sequence that has fallen back, and that no check takes back, writes the learned operator's tokens whatever the
   constant says: no hypothesis on the constant at all. *)
Theorem guarded_fallen k u text :
  (forall i, (i < k)%N -> tolerance s < operator_deviation (recompute i text)) ->
  guarded k (State true u) text = recompute k text.
Proof.
elim: k u text => //= k IH u text far; rewrite /guard_step /due /= orbT (far 0%N isT) /=.
by apply: IH => i lt_ik; apply: (far i.+1).
Qed.

End Guard.
