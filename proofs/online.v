(* The online contract: step t of generation reads the last row of the model on the known prefix, x_1 .. x_t
   (arXiv:2608.10288). A decoder maps a sequence of inputs to a sequence of rows. *)
From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp Require Import reals sequences exp.
From plga Require Import softmax density attention.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Contracts.
Variables X Y Z : Type.
Implicit Types (f : seq X -> seq Y) (s : seq X).

Definition row_by_row f := forall s, size (f s) = size s.

(* A row of a longer call is the row of the call on its own prefix. *)
Definition prefix_consistent f := forall s n, f (take n s) = take n (f s).

(* A row reads no later input. *)
Definition causal f := forall s1 s2 r y, take r.+1 s1 = take r.+1 s2 -> nth y (f s1) r = nth y (f s2) r.

(* All that the online contract reads: the last row of each prefix. *)
Definition online f s : seq Y := flatten [seq drop r (f (take r.+1 s)) | r <- iota 0 (size s)].

End Contracts.

Section Theorems.
Variables X Y Z : Type.
Implicit Types (f : seq X -> seq Y) (s : seq X).

(* Claim 12. For a decoder with a row for every input, causality and prefix consistency are the same. *)
Theorem causal_iff_prefix_consistent f : row_by_row f -> causal f <-> prefix_consistent f.
Proof.
move=> size_f; split=> [caus s n|cons s1 s2 r y same]; last first.
  have row s : nth y (f s) r = nth y (f (take r.+1 s)) r by rewrite cons nth_take.
  by rewrite row same -row.
have [lt_n|] := ltnP n (size s); last first.
  by move=> le_n; rewrite !take_oversize // size_f.
case: s lt_n => // x s lt_n; have y : Y by case: (f (x :: s)) (size_f (x :: s)).
apply: (@eq_from_nth _ y) => [|r]; first by rewrite size_f !size_take size_f.
rewrite size_f size_take lt_n => lt_rn; rewrite nth_take //.
by apply: caus; rewrite take_take.
Qed.

Lemma drop_last_row f s r : row_by_row f -> (r < size s)%N -> size (drop r (f (take r.+1 s))) = 1%N.
Proof.
move=> size_f lt_r; rewrite size_drop size_f size_takel //.
by rewrite subSnn.
Qed.

Lemma size_online_rows f s n : row_by_row f -> (n <= size s)%N ->
  size (flatten [seq drop r (f (take r.+1 s)) | r <- iota 0 n]) = n.
Proof.
move=> size_f; elim: n => // n IH lt_n.
by rewrite -addn1 iotaD map_cat flatten_cat size_cat IH ?(ltnW lt_n) //= cats0 add0n drop_last_row.
Qed.

(* Reading online is prefix consistent by itself, whatever the decoder. *)
Theorem online_take f s n : row_by_row f -> online f (take n s) = take n (online f s).
Proof.
move=> size_f; have size_on t : size (online f t) = size t by apply: size_online_rows.
have [lt_n|le_n] := ltnP n (size s); last by rewrite !take_oversize // size_on.
rewrite /online size_take lt_n -[in RHS](subnKC (ltnW lt_n)) iotaD map_cat flatten_cat add0n.
rewrite take_size_cat ?size_online_rows ?(ltnW lt_n) //; congr flatten.
by apply/eq_in_map => r; rewrite mem_iota add0n => /andP[_ lt_r]; rewrite take_take.
Qed.

(* Block and online read the same rows exactly for prefix-consistent decoders. *)
Theorem block_is_online_iff f : row_by_row f -> (forall s, online f s = f s) <-> prefix_consistent f.
Proof.
move=> size_f; split=> [on s n|cons s]; first by rewrite -!on; apply: online_take.
suff rows n : (n <= size s)%N -> flatten [seq drop r (f (take r.+1 s)) | r <- iota 0 n] = take n (f s).
  by rewrite /online rows // take_oversize // size_f.
elim: n => [|n IH] le_n; first by rewrite take0.
rewrite -addn1 iotaD map_cat flatten_cat IH ?(ltnW le_n) //= cats0 add0n cons addn1.
by rewrite -[in RHS](cat_take_drop n (take n.+1 (f s))) take_take.
Qed.

(* Row-local maps (feed-forward, LayerNorm, embedding, head) satisfy the contract, ... *)
Theorem map_prefix_consistent (h : X -> Y) : row_by_row (map h) /\ prefix_consistent (map h).
Proof. by split=> [s|s n]; rewrite ?size_map ?map_take. Qed.

(* ... so block equals online for them, ... *)
Theorem map_block_is_online (h : X -> Y) s : online (map h) s = map h s.
Proof. by apply: (block_is_online_iff _).2; apply map_prefix_consistent. Qed.

(* ... and so does every row that is computed from its own prefix, causal attention with a constant operator for one. *)
Definition scan (h : seq X -> Y) s : seq Y := [seq h (take r.+1 s) | r <- iota 0 (size s)].

Theorem scan_prefix_consistent (h : seq X -> Y) : row_by_row (scan h) /\ prefix_consistent (scan h).
Proof.
split=> [s|s n]; first by rewrite size_map size_iota.
have [lt_n|le_n] := ltnP n (size s); last by rewrite !take_oversize // size_map size_iota.
rewrite /scan size_take lt_n -map_take take_iota (minn_idPl (ltnW lt_n)).
by apply/eq_in_map => r; rewrite mem_iota add0n => /andP[_ lt_r]; rewrite take_take.
Qed.

(* Layers on layers keep the contract. *)
Theorem comp_prefix_consistent f (g : seq Y -> seq Z) :
  prefix_consistent f -> prefix_consistent g -> prefix_consistent (g \o f).
Proof. by move=> cf cg s n /=; rewrite cf cg. Qed.

End Theorems.

(* Claim 12. A decoder that aggregates over the whole sequence violates it: here every row is the sum of all inputs. *)
Theorem global_sum_violates : ~ prefix_consistent (fun s : seq nat => nseq (size s) (sumn s)).
Proof. by move=> /(_ [:: 0; 1]%N 1%N). Qed.

(* ---- Attention on matrices: the first n of n + m tokens, under the causal mask. *)

Section CausalAttention.
Variable R : realType.

Definition causal_mask n (s : 'I_n) : pred 'I_n := fun t => (t <= s)%N.

(* Claim 12. With one and the same G the first n rows of a longer call are the call on the first n tokens. *)
Theorem causal_attention_prefix n m d e (G : 'M[R]_d) (q k : 'M[R]_(n + m, d)) (v : 'M[R]_(n + m, e)) :
  usubmx (attention (@causal_mask _) G q k v)
  = attention (@causal_mask _) G (usubmx q) (usubmx k) (usubmx v).
Proof.
pose c : R := (Num.sqrt d%:R)^-1.
pose x := c *: (q *m G *m k^T); pose y := c *: (usubmx q *m G *m (usubmx k)^T).
have xy s t : x (lshift m s) (lshift m t) = y s t.
  rewrite !mxE; congr (_ * _); apply: eq_bigr => j _; rewrite !mxE; congr (_ * _).
  by apply: eq_bigr => i _; rewrite !mxE.
have norms s : normalizer (causal_mask (lshift m s)) (x (lshift m s)) = normalizer (causal_mask s) (y s).
  rewrite /normalizer big_mkcond big_split_ord /= [X in _ + X]big1 ?addr0 => [|t _]; last first.
    by rewrite /causal_mask /= leqNgt (leq_trans (ltn_ord s)) ?leq_addr.
  by rewrite [RHS]big_mkcond; apply: eq_bigr => t _; rewrite /causal_mask /= xy.
apply/matrixP => s j; rewrite !mxE big_split_ord /= [X in _ + X]big1 ?addr0 => [|t _]; last first.
  by rewrite mxE softmax_off ?mul0r // /causal_mask /= -ltnNge (leq_trans (ltn_ord s)) ?leq_addr.
apply: eq_bigr => t _; rewrite !mxE; congr (_ * _).
by rewrite /softmax /causal_mask /= -/c -/x -/y norms xy.
Qed.

(* Claim 12. With an operator made from the whole sequence it fails: here G is the density operator itself, the width is 1,
   query, key and value of the three tokens are 0, 1, 1, and the row of the second token changes with the third. *)
Definition example_rows n : 'M[R]_(n, 1) := \matrix_(s, j) (s != 0%N :> nat)%:R.

Lemma example_row1 n (G : 'M[R]_1) (x := example_rows n.+2) :
  attention (@causal_mask _) G x x x 1 0 = expR (G 0 0) / (1 + expR (G 0 0)).
Proof.
have scores t : ((Num.sqrt 1%:R)^-1 *: (x *m G *m x^T)) 1 t = G 0 0 * x t 0.
  by rewrite !mxE !big_ord1 !mxE big_ord1 sqrtr1 invr1 !mul1r !mxE mul1r.
rewrite mxE 2!big_ord_recl [X in _ + (_ + X)]big1 => [|t _]; last by rewrite mxE softmax_off ?mul0r.
rewrite !addr0 ![x _ _]mxE /= mulr0 add0r mulr1 !mxE /softmax /= scores mxE mulr1; congr (_ / _).
rewrite /normalizer big_mkcond 2!big_ord_recl big1 => [|t _]; last by [].
by rewrite /= !scores !mxE /= mulr0 mulr1 expR0 addr0.
Qed.

Theorem global_density_violates :
  let block n (x : 'M[R]_(n, 1)) := attention (@causal_mask n) (density x) x x x in
  usubmx (block (2 + 1)%N (example_rows (2 + 1))) <> block 2%N (usubmx (example_rows (2 + 1))).
Proof.
have dens n : density (example_rows n.+1) 0 0 = n%:R.
  rewrite mxE big_ord_recl !mxE mul0r add0r (eq_bigr (fun=> 1)) => [|s _]; last by rewrite !mxE mul1r.
  by rewrite sumr_const card_ord.
have prefix : usubmx (example_rows (2 + 1)) = example_rows 2 by apply/matrixP => s j; rewrite !mxE.
move=> block; rewrite prefix => /matrixP/(_ 1 0); rewrite mxE.
have -> : lshift 1 (1 : 'I_2) = 1 :> 'I_(2 + 1) by exact: val_inj.
rewrite /block (example_row1 1) (example_row1 0) !dens => /eqP.
have pos (r : R) : 1 + expR r != 0 by rewrite gt_eqF ?addr_gt0 ?ltr01 ?expR_gt0.
rewrite eqr_div ?pos // !mulrDr !mulr1 [expR 2%:R * expR _]mulrC => /eqP/addIr/expR_inj/eqP.
by rewrite eqr_nat.
Qed.

End CausalAttention.
