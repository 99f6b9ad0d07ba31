(* Walk counting for the DAG regularizer: tr exp(N) of a nonnegative matrix N = M ⊙ M (arXiv:2608.10288; NOTEARS,
   arXiv:1803.01422). The exponential is the entrywise limit of its power series. *)
From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp Require Import boolp classical_sets functions.
From mathcomp Require Import reals topology normedtype sequences exp.
From plga Require Import power_law.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import Order.TTheory GRing.Theory Num.Theory numFieldNormedType.Exports.
Local Open Scope ring_scope.
Local Open Scope classical_set_scope.

Section Walks.
Variables (R : realType) (n : nat).
Local Notation d := n.+1.
Implicit Types (M N E : 'M[R]_d) (i j : 'I_d) (k : nat).

Definition nonnegative N := forall i j, 0 <= N i j.

(* Terms (N^k)_ij / k! of the exponential, and those of its trace. *)
Definition exp_terms N i j : R^nat := fun k => (N ^+ k) i j / k`!%:R.
Definition trace_terms N : R^nat := fun k => \tr (N ^+ k) / k`!%:R.

Definition expm N : 'M[R]_d := \matrix_(i, j) lim (series (exp_terms N i j)).

(* ---- The series converges, whatever N. *)

Definition size1 N : R := \sum_i \sum_j `|N i j|.

Lemma size1_ge0 N : 0 <= size1 N.
Proof. by apply: sumr_ge0 => i _; apply: sumr_ge0 => j _. Qed.

Lemma row_le_size1 N i : \sum_j `|N i j| <= size1 N.
Proof.
rewrite /size1 [X in _ <= X](bigD1 i) //= ler_addl; apply: sumr_ge0 => l _.
by apply: sumr_ge0 => j _.
Qed.

Lemma entry_le_size1 N i j : `|N i j| <= size1 N.
Proof.
apply: le_trans (row_le_size1 N i); rewrite (bigD1 j) //= ler_addl.
by apply: sumr_ge0 => l _.
Qed.

Lemma power_le N k i j : `|(N ^+ k) i j| <= size1 N ^+ k.
Proof.
elim: k i j => [|k IH] i j.
  by rewrite !expr0 mxE; case: (i == j); rewrite ?normr1 ?normr0 ?ler01.
rewrite !exprS mxE; apply: le_trans (ler_norm_sum _ _ _) _.
apply: (@le_trans _ _ (\sum_l `|N i l| * size1 N ^+ k)).
  by apply: ler_sum => l _; rewrite normrM ler_wpmul2l.
by rewrite -mulr_suml ler_wpmul2r ?row_le_size1 // exprn_ge0 ?size1_ge0.
Qed.

Lemma fact_gt0R k : 0 < k`!%:R :> R. Proof. by rewrite ltr0n fact_gt0. Qed.

Lemma invr_gt0_fact k : 0 < (k`!%:R)^-1 :> R. Proof. by rewrite invr_gt0 fact_gt0R. Qed.

Lemma dominated_cvg (u : R^nat) (c : R) : 0 <= c -> (forall k, `|u k| <= c ^+ k / k`!%:R) -> cvg (series u).
Proof.
move=> c_ge0 le_u; apply: normed_cvg; apply: series_le_cvg le_u _ => // [k|].
  by rewrite divr_ge0 ?exprn_ge0 ?ler0n.
exact: is_cvg_series_exp_coeff.
Qed.

Theorem expm_cvg N i j : cvg (series (exp_terms N i j)).
Proof.
apply: (dominated_cvg (size1_ge0 N)) => k; rewrite normrM [`|_^-1|]ger0_norm ?invr_ge0 ?ler0n //.
by rewrite ler_wpmul2r ?invr_ge0 ?ler0n // power_le.
Qed.

Lemma cvg_sum_ord m (u : 'I_m -> R^nat) (l : 'I_m -> R) :
  (forall h, u h --> l h) -> (fun k => \sum_h u h k) --> \sum_h l h.
Proof.
elim: m u l => [|m IH] u l cvg_u.
  rewrite big_ord0 (_ : (fun _ => _) = fun=> 0); first exact: cvg_cst.
  by apply/funext => k; rewrite big_ord0.
rewrite big_ord_recl (_ : (fun _ => _) = u ord0 + (fun k => \sum_h u (lift ord0 h) k)).
  by apply: cvgD; [exact: cvg_u | apply: IH => h; apply: cvg_u].
by apply/funext => k; rewrite big_ord_recl.
Qed.

Lemma trace_series N : series (trace_terms N) = fun k => \sum_i series (exp_terms N i i) k.
Proof.
apply/funext => k; rewrite /series /= exchange_big /=; apply: eq_bigr => l _.
by rewrite /trace_terms /exp_terms /mxtrace mulr_suml.
Qed.

Theorem trace_expm_cvg N : series (trace_terms N) --> \tr (expm N).
Proof.
rewrite trace_series; apply: cvg_sum_ord => i; rewrite mxE.
exact: expm_cvg.
Qed.

Lemma trace_expmE N : lim (series (trace_terms N)) = \tr (expm N).
Proof. by apply/cvg_lim => //; apply: trace_expm_cvg. Qed.

(* ---- Nonnegative matrices. *)

(* Claim 9. Their powers are nonnegative, ... *)
Theorem power_nonnegative N k : nonnegative N -> nonnegative (N ^+ k).
Proof.
move=> N_ge0; elim: k => [|k IH] i j; first by rewrite expr0 mxE ler0n.
by rewrite exprS mxE; apply: sumr_ge0 => l _; rewrite mulr_ge0.
Qed.

(* ... and so are the traces of their powers. *)
Theorem trace_power_ge0 N k : nonnegative N -> 0 <= \tr (N ^+ k).
Proof. by move=> N_ge0; apply: sumr_ge0 => i _; apply: power_nonnegative. Qed.

Lemma trace_terms_ge0 N k : nonnegative N -> 0 <= trace_terms N k.
Proof. by move=> N_ge0; rewrite divr_ge0 ?trace_power_ge0 ?ler0n. Qed.

(* Every partial sum bounds tr exp(N) from below, ... *)
Theorem trace_expm_ge N k : nonnegative N -> \sum_(l < k) \tr (N ^+ l) / l`!%:R <= \tr (expm N).
Proof.
move=> N_ge0; rewrite -trace_expmE -(big_mkord xpredT (trace_terms N)).
apply: (@nondecreasing_cvg_le _ (series (trace_terms N))); last by apply/cvg_ex; eexists; apply: trace_expm_cvg.
by apply: nondecreasing_series => l _; apply: trace_terms_ge0.
Qed.

(* ... the first two for one: tr exp(N) ≥ d + tr N, ... *)
Theorem trace_expm_ge_trace N : nonnegative N -> d%:R + \tr N <= \tr (expm N).
Proof.
move=> N_ge0; have := trace_expm_ge 2 N_ge0.
by rewrite !big_ord_recl big_ord0 addr0 expr0 expr1 !fact0 !divr1 mxtrace1 /= ?fact0 ?divr1.
Qed.

Theorem trace_expm_ge_power N k : nonnegative N -> d%:R + \tr (N ^+ k.+1) / k.+1`!%:R <= \tr (expm N).
Proof.
move=> N_ge0; apply: le_trans (trace_expm_ge k.+2 N_ge0).
rewrite (bigD1 ord0) //= (bigD1 ord_max) //= expr0 fact0 divr1 mxtrace1 ler_add2l ler_addl.
by apply: sumr_ge0 => l _; apply: trace_terms_ge0.
Qed.

Theorem trace_expm_ge_width N : nonnegative N -> d%:R <= \tr (expm N).
Proof. by move=> N_ge0; apply: le_trans (trace_expm_ge_trace N_ge0); rewrite ler_addl (trace_power_ge0 1 N_ge0). Qed.

(* Claim 9. ... and the positivity obstruction: with positive entries it stays above d, so the regularizer is never zero. *)
Theorem positivity_obstruction N : (forall i j, 0 < N i j) -> d%:R < \tr (expm N).
Proof.
move=> N_gt0; have N_ge0 : nonnegative N by move=> i j; apply: ltW.
apply: lt_le_trans (trace_expm_ge_trace N_ge0); rewrite ltr_addl.
by rewrite /mxtrace big_ord_recl ltr_spaddl // sumr_ge0.
Qed.

(* ℓ(M) = |log(tr exp(M ⊙ M) / d)| *)
Definition dag_loss M : R := `|ln (\tr (expm (hadamard M M)) / d%:R)|.

Lemma hadamard_nonnegative M : nonnegative (hadamard M M).
Proof. by move=> i j; rewrite mxE -expr2 sqr_ge0. Qed.

Lemma width_gt0R : 0 < d%:R :> R. Proof. by rewrite ltr0n. Qed.

Lemma dag_loss_eq0_trace M : dag_loss M = 0 <-> \tr (expm (hadamard M M)) = d%:R.
Proof.
have ge := trace_expm_ge_width (hadamard_nonnegative M).
have pos : 0 < \tr (expm (hadamard M M)) / d%:R by rewrite divr_gt0 // (lt_le_trans width_gt0R).
rewrite /dag_loss; split=> [/eqP|->]; last by rewrite divff ?ln1 ?normr0 // gt_eqF ?width_gt0R.
rewrite normr_eq0 -ln1 => /eqP /ln_inj; rewrite !posrE => /(_ pos ltr01) /(canRL (divfK _)).
by rewrite mul1r; apply; rewrite gt_eqF ?width_gt0R.
Qed.

(* The metric tensor has entries of at least ε > 0, so its loss cannot vanish: log(1 + ε²) is the least it can be. *)
Theorem metric_dag_loss eps (W b A : 'M[R]_d) : 0 < eps -> ln (1 + eps ^+ 2) <= dag_loss (metric eps W b A).
Proof.
move=> eps_gt0; set M := metric eps W b A.
apply: le_trans (ler_norm _).
have ge : 1 + eps ^+ 2 <= \tr (expm (hadamard M M)) / d%:R.
  rewrite ler_pdivl_mulr ?width_gt0R //; apply: le_trans (trace_expm_ge_trace (hadamard_nonnegative M)).
  rewrite mulrDl mul1r ler_add2l mulr_natr -[d in X in X <= _]card_ord -sumr_const.
  apply: ler_sum => i _; rewrite mxE -expr2 ler_pexpn2r ?nnegrE ?(ltW eps_gt0) //.
    exact: metric_ge_eps.
  exact/ltW/metric_gt0.
have pos : 0 < 1 + eps ^+ 2 by rewrite addr_gt0 ?ltr01 // exprn_gt0.
by rewrite ler_ln ?posrE // (lt_le_trans pos).
Qed.

(* ---- Claim c. Acyclicity. The graph of N has an edge from i to j where N_ij is not zero. *)

Definition edge N : rel 'I_d := fun i j => N i j != 0.

(* No walk of one step or more returns to where it began. *)
Definition acyclic N := forall i p, path (edge N) i p -> p != [::] -> last i p != i.

(* The power N^k has a positive entry exactly where a walk of k steps leads. *)
Theorem power_walk N k i j : nonnegative N ->
  (0 < (N ^+ k) i j) <-> exists p, [/\ size p = k, path (edge N) i p & last i p = j].
Proof.
move=> N_ge0; elim: k i => [|k IH] i.
  rewrite expr0 mxE; split=> [|[[|l p] [// _ _ /= ->]]]; last by rewrite eqxx ltr01.
  by case: eqP => [-> _|_]; [exists [::] | rewrite ltxx].
have terms l : 0 <= N i l * (N ^+ k) l j by rewrite mulr_ge0 //; apply: power_nonnegative.
rewrite exprS mxE; split=> [pos|[[|l p] [//= [size_p] /andP[il path_p] last_p]]].
  have [l] : exists l, 0 < N i l * (N ^+ k) l j.
    apply/existsP; apply: contraTT pos; rewrite negb_exists => /forallP none.
    by rewrite big1 ?ltxx // => l _; apply/eqP; rewrite eq_le terms leNgt none.
  rewrite lt0r mulf_eq0 negb_or -andbA => /and3P[il lj _].
  have [p [size_p path_p last_p]] : exists p, [/\ size p = k, path (edge N) l p & last l p = j].
    by apply/IH; rewrite lt0r lj; apply: power_nonnegative.
  by exists (l :: p); rewrite /= size_p path_p last_p; split=> //; rewrite /edge il.
rewrite (bigD1 l) //= ltr_spaddl ?sumr_ge0 // mulr_gt0 //.
  by rewrite lt0r N_ge0 andbT.
by apply/IH; exists p.
Qed.

Theorem acyclic_trace N : nonnegative N -> acyclic N <-> forall k, \tr (N ^+ k.+1) = 0.
Proof.
move=> N_ge0; split=> [acyc k|traces i p path_p].
  apply: big1 => i _; apply/eqP; rewrite eq_le power_nonnegative // andbT leNgt.
  apply/negP => /power_walk -/(_ N_ge0) [p [size_p path_p last_p]].
  by have := acyc i p path_p; rewrite last_p eqxx -size_eq0 size_p => /(_ isT).
rewrite -size_eq0; case size_p : (size p) => [//|k] _; apply/eqP => last_p.
have pos : 0 < (N ^+ k.+1) i i by apply/power_walk => //; exists p.
have := traces k; rewrite /mxtrace (bigD1 i) //= => /eqP; rewrite gt_eqF // ltr_spaddl //.
by apply: sumr_ge0 => l _; apply: power_nonnegative.
Qed.

(* Claim c. NOTEARS: tr exp(N) = d exactly where the graph of the nonnegative matrix N has no cycle. *)
Theorem notears N : nonnegative N -> \tr (expm N) = d%:R <-> acyclic N.
Proof.
move=> N_ge0; split=> [eq_d|/(acyclic_trace N_ge0) traces]; last first.
  rewrite -trace_expmE; apply/cvg_lim => //; rewrite -(cvg_shiftS _).
  rewrite (_ : [sequence _]_k = fun=> d%:R) /=; first exact: cvg_cst.
  apply/funext => k; rewrite /= /series /= big_nat_recl // /trace_terms expr0 fact0 divr1 mxtrace1.
  by rewrite big1 ?addr0 // => l _; rewrite traces mul0r.
apply/(acyclic_trace N_ge0) => k; apply/eqP; rewrite eq_le trace_power_ge0 // andbT.
rewrite -(pmulr_lle0 _ (invr_gt0_fact k.+1)) -(ler_add2l d%:R) addr0 -[X in _ <= X]eq_d.
exact: trace_expm_ge_power.
Qed.

Theorem dag_loss_eq0 M : dag_loss M = 0 <-> acyclic M.
Proof.
have same : acyclic (hadamard M M) <-> acyclic M.
  have edges : edge (hadamard M M) =2 edge M by move=> i j; rewrite /edge mxE mulf_eq0 orbb.
  by split=> acyc i p; [rewrite -(eq_path edges) | rewrite (eq_path edges)]; apply: acyc.
by rewrite dag_loss_eq0_trace (notears (hadamard_nonnegative M)).
Qed.

End Walks.
