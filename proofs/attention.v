(* PLGA's attention with an operator G, and what is left of it when G is constant (arXiv:2608.10288: exact
   generalization of SDPA, inference collapse, absorption). Rows of q, k, v are those of the tokens. *)
From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp Require Import reals sequences exp.
From plga Require Import power_law softmax rotary.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Attention.
Variable R : realType.

Section OneHead.
Variables S T d e : nat.
Implicit Types (mask : 'I_S -> pred 'I_T) (x : 'M[R]_(S, T)) (q : 'M[R]_(S, d)) (k : 'M[R]_(T, d)) (v : 'M[R]_(T, e)).

(* Softmax of every row over the keys that its mask allows. *)
Definition softmax_rows mask x : 'M[R]_(S, T) := \matrix_(s, t) softmax (mask s) (x s) t.

(* softmax(mask(q G kᵀ / √d)) v *)
Definition attention mask (G : 'M[R]_d) q k v : 'M[R]_(S, e) :=
  softmax_rows mask ((Num.sqrt d%:R)^-1 *: (q *m G *m k^T)) *m v.

(* softmax(mask(q kᵀ / √d)) v *)
Definition sdpa mask q k v : 'M[R]_(S, e) := softmax_rows mask ((Num.sqrt d%:R)^-1 *: (q *m k^T)) *m v.

(* Rows of weights are positive where the mask allows, zero elsewhere, and sum to one. *)
Theorem attention_weights mask x s t0 : mask s t0 ->
  [/\ forall t, mask s t -> 0 < softmax_rows mask x s t,
      forall t, ~~ mask s t -> softmax_rows mask x s t = 0
    & \sum_t softmax_rows mask x s t = 1].
Proof.
move=> allowed; split=> [t mt|t mt|]; rewrite ?mxE ?softmax_gt0 ?softmax_off //.
by under eq_bigr do rewrite mxE; apply: (softmax_sum1 _ allowed).
Qed.

(* Claim 11. SDPA is exactly PLGA with G = I. *)
Theorem plga_identity_is_sdpa mask q k v : attention mask 1%:M q k v = sdpa mask q k v.
Proof. by rewrite /attention mulmx1. Qed.

(* Claim f. With a = 0 and b_a = I the operator that the network computes is I whatever it reads, so a PLGA model that starts
   there computes SDPA, for every input, generator, metric weights and exponents. *)
Theorem plga_adopted_is_sdpa eps (W bW P A : 'M[R]_d) mask q k v :
  attention mask (operator eps W bW P 0 1%:M A) q k v = sdpa mask q k v.
Proof. by rewrite operator_adopted plga_identity_is_sdpa. Qed.

(* Any constant G moves into the queries ... *)
Theorem attention_absorbed mask G q k v : attention mask G q k v = sdpa mask (q *m G) k v.
Proof. by []. Qed.

(* Claim 11. ... and so into an affine query projection q = x W + b: what is left is SDPA with W G and b G. *)
Theorem projection_absorbed m mask G (x : 'M[R]_(S, m)) (W : 'M[R]_(m, d)) (b : 'rV[R]_d) k v :
  attention mask G (x *m W + const_mx 1 *m b) k v = sdpa mask (x *m (W *m G) + const_mx 1 *m (b *m G)) k v.
Proof. by rewrite attention_absorbed mulmxDl -!mulmxA. Qed.

End OneHead.

(* With rotary embedding between projection and score, for a G that commutes with the rotations. *)
Section Rotated.
Variables (S T n e m : nat) (theta : 'I_n -> R).
Local Notation d := (n * 2)%N.

(* Row s of x, at position p s, rotated. *)
Definition rotated N (p : 'I_N -> int) (x : 'M[R]_(N, d)) : 'M[R]_(N, d) :=
  \matrix_(s, j) (row s x *m rotary theta (p s)) 0 j.

Lemma rotated_mul N (p : 'I_N -> int) (x : 'M[R]_(N, d)) G :
  commutes theta G -> rotated p x *m G = rotated p (x *m G).
Proof.
move=> comm; apply/row_matrixP => s; rewrite row_mul.
have rowE (y : 'M[R]_(N, d)) : row s (rotated p y) = row s y *m rotary theta (p s).
  by apply/rowP => j; rewrite !mxE; apply: eq_bigr => i _; rewrite !mxE.
by rewrite !rowE row_mul -!mulmxA comm.
Qed.

(* Claim 11, with rotary embedding: the query projection takes up a commuting constant, weight and bias. *)
Theorem rotary_projection_absorbed (mask : 'I_S -> pred 'I_T) (p : 'I_S -> int) (r : 'I_T -> int) G
    (x : 'M[R]_(S, m)) (W : 'M[R]_(m, d)) (b : 'rV[R]_d) (k : 'M[R]_(T, d)) (v : 'M[R]_(T, e)) :
  commutes theta G ->
  attention mask G (rotated p (x *m W + const_mx 1 *m b)) (rotated r k) v
  = sdpa mask (rotated p (x *m (W *m G) + const_mx 1 *m (b *m G))) (rotated r k) v.
Proof.
move=> comm; rewrite attention_absorbed (rotated_mul _ _ comm).
suff -> : (x *m W + const_mx 1 *m b) *m G = x *m (W *m G) + const_mx 1 *m (b *m G) by [].
by rewrite mulmxDl !mulmxA.
Qed.

End Rotated.
End Attention.

(* ---- Inference collapse of a whole decoder. A layer is a generator of operators, all heads together, and what it does
   with hidden states and an operator: attention, feed-forward, norms, of any kind. *)

Section Collapse.
Variables (Hidden Operator Token : Type).

Record layer := Layer { generate : Hidden -> Operator; apply_with : Operator -> Hidden -> Hidden }.

(* Operators rebuilt from what each layer reads, ... *)
Fixpoint recomputed (layers : seq layer) (h : Hidden) : Hidden :=
  if layers is l :: rest then recomputed rest (apply_with l (generate l h) h) else h.

(* ... or kept: one constant a layer. *)
Fixpoint kept (layers : seq (layer * Operator)) (h : Hidden) : Hidden :=
  if layers is (l, G) :: rest then kept rest (apply_with l G h) else h.

(* Exact invariance on one input: every layer, reading what the layers below made of it, generates its constant. *)
Fixpoint invariant_on (layers : seq (layer * Operator)) (h : Hidden) : Prop :=
  if layers is (l, G) :: rest then generate l h = G /\ invariant_on rest (apply_with l G h) else True.

(* Claim 11, conditional on exact invariance: the kept operators give the recomputed hidden states, exactly. *)
Theorem collapse layers h : invariant_on layers h -> kept layers h = recomputed (unzip1 layers) h.
Proof.
by elim: layers h => //= -[l G] layers IH h [gen inv] /=; rewrite gen IH.
Qed.

(* Writing n tokens after a text, each chosen from the hidden states of the whole text. *)
Fixpoint write (run : Hidden -> Hidden) (embed : seq Token -> Hidden) (choose : Hidden -> Token) n text : seq Token :=
  if n is n'.+1 then write run embed choose n' (rcons text (choose (run (embed text)))) else text.

(* So a text written with the kept operators is the text that recomputing writes, as long as the operators are invariant
   on the prefixes that recomputing passes through. *)
Theorem collapse_writes layers embed choose n text :
  (forall i, (i < n)%N -> invariant_on layers (embed (write (recomputed (unzip1 layers)) embed choose i text))) ->
  write (kept layers) embed choose n text = write (recomputed (unzip1 layers)) embed choose n text.
Proof.
elim: n text => //= n IH text inv; rewrite collapse; last by have := inv 0%N isT.
by apply: IH => i lt_in; apply: (inv i.+1).
Qed.

End Collapse.
