(* The gradient of the DAG regularizer that training uses (plga/ops/acyclicity.py):
   d log(tr exp(M ⊙ M) / d) / dM_ij = 2 M_ij exp(M ⊙ M)_ji / tr exp(M ⊙ M). *)
From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp Require Import boolp classical_sets functions.
From mathcomp Require Import reals topology normedtype sequences derive realfun exp.
From mathcomp.algebra_tactics Require Import ring.
From plga Require Import power_law walks.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import Order.TTheory GRing.Theory Num.Theory numFieldNormedType.Exports.
Local Open Scope ring_scope.
Local Open Scope classical_set_scope.

Section Gradient.
Variables (R : realType) (n : nat).
Local Notation d := n.+1.
Implicit Types (M N E A B : 'M[R]_d) (i j : 'I_d) (k : nat) (t : R).

Lemma is_derive_of_limit (F : R -> R) (l : R) :
  h^-1 *: (F (h + 0) - F 0) @[h --> 0^'] --> l -> is_derive (0 : R) 1 F l.
Proof.
move=> limit; have derivative : derive1 F 0 = l by apply: cvg_lim limit.
have Df : derivable F 0 1.
  move: limit; rewrite /derivable [X in X @ _](_ : _ = (fun h => h^-1 *: (F (h%:A + 0) - F 0))) /=; last first.
    by apply/funext => h //=; rewrite [h%:A]mulr1.
  by move=> /(cvg_lim _) -> //.
by constructor; [exact: Df | rewrite -derive1E].
Qed.

(* ---- The sum of the absolute entries is a norm that products respect. *)

Lemma size1D A B : size1 (A + B) <= size1 A + size1 B.
Proof.
rewrite /size1 -big_split /=; apply: ler_sum => i _; rewrite -big_split /=.
by apply: ler_sum => j _; rewrite mxE ler_norm_add.
Qed.

Lemma size1Z t A : size1 (t *: A) = `|t| * size1 A.
Proof.
rewrite /size1 mulr_sumr; apply: eq_bigr => i _; rewrite mulr_sumr.
by apply: eq_bigr => j _; rewrite mxE normrM.
Qed.

Lemma size1M A B : size1 (A *m B) <= size1 A * size1 B.
Proof.
rewrite {1}/size1 /size1 mulr_suml; apply: ler_sum => i _.
apply: (@le_trans _ _ (\sum_j \sum_l `|A i l| * `|B l j|)).
  apply: ler_sum => j _; rewrite mxE; apply: le_trans (ler_norm_sum _ _ _) _.
  by apply: ler_sum => l _; rewrite normrM.
rewrite exchange_big mulr_suml /=; apply: ler_sum => l _; rewrite -mulr_sumr.
by rewrite ler_wpmul2l // row_le_size1.
Qed.

Lemma trace_le_size1 A : `|\tr A| <= size1 A.
Proof.
apply: le_trans (ler_norm_sum _ _ _) _; apply: ler_sum => i _.
by rewrite (bigD1 i) //= ler_addl; apply: sumr_ge0.
Qed.

(* ---- (N + t E)^k = N^k + t S_k + t² Q_k *)

Fixpoint first_order N E k : 'M[R]_d :=
  if k is k'.+1 then N *m first_order N E k' + E *m N ^+ k' else 0.
Fixpoint second_order N E t k : 'M[R]_d :=
  if k is k'.+1 then (N + t *: E) *m second_order N E t k' + E *m first_order N E k' else 0.

Lemma power_expansion N E t k :
  (N + t *: E) ^+ k = N ^+ k + t *: first_order N E k + t ^+ 2 *: second_order N E t k.
Proof.
elim: k => [|k IH] /=; first by rewrite !expr0 !scaler0 !addr0.
rewrite [LHS]exprS IH -mulmxE; set X := N + t *: E; set S := first_order N E k; set Q := second_order N E t k.
have e1 : X *m N ^+ k = N ^+ k.+1 + t *: (E *m N ^+ k) by rewrite /X mulmxDl -scalemxAl exprS.
have e2 : X *m (t *: S) = t *: (N *m S) + t ^+ 2 *: (E *m S).
  by rewrite /X mulmxDl -!scalemxAr -scalemxAl scalerA expr2.
rewrite !mulmxDr e1 e2 -scalemxAr !scalerDr -!addrA; congr (_ + _).
by rewrite addrCA; congr (_ + (_ + _)); rewrite addrC.
Qed.

Lemma size1_power N k (C : R) : size1 N <= C -> size1 (N ^+ k) <= size1 (1%:M : 'M[R]_d) * C ^+ k.
Proof.
move=> N_le; elim: k => [|k IH]; first by rewrite !expr0 mulr1.
rewrite exprS -mulmxE; apply: le_trans (size1M _ _) _.
by rewrite exprS mulrCA; apply: ler_pmul; rewrite ?size1_ge0.
Qed.

Section Bounds.
Variables (N E : 'M[R]_d).
Let C := size1 N + size1 E.
Let K : R := size1 (1%:M : 'M[R]_d).

Lemma C_ge0 : 0 <= C. Proof. by rewrite addr_ge0 ?size1_ge0. Qed.
Lemma N_leC : size1 N <= C. Proof. by rewrite ler_addl size1_ge0. Qed.
Lemma E_leC : size1 E <= C. Proof. by rewrite ler_addr size1_ge0. Qed.

Lemma first_order_le k : size1 (first_order N E k) <= K * (2%:R * C) ^+ k.
Proof.
have K_ge0 : 0 <= K by apply: size1_ge0.
have powC m : 0 <= C ^+ m by rewrite exprn_ge0 ?C_ge0.
elim: k => [|k IH] /=.
  by rewrite expr0 mulr1 /size1 big1 ?size1_ge0 // => i _; rewrite big1 // => j _; rewrite mxE normr0.
apply: le_trans (size1D _ _) _; rewrite exprS.
have -> : K * (2%:R * C * (2%:R * C) ^+ k) = C * (K * (2%:R * C) ^+ k) + C * (K * (2%:R * C) ^+ k).
  by move: (_ ^+ k) => x; ring.
apply: ler_add; apply: le_trans (size1M _ _) _; apply: ler_pmul; rewrite ?size1_ge0 ?N_leC ?E_leC //.
apply: le_trans (size1_power _ N_leC) _; rewrite ler_wpmul2l // exprMn ler_pemull //.
by rewrite -natrX ler1n expn_gt0.
Qed.

Lemma second_order_le t k : `|t| <= 1 -> size1 (second_order N E t k) <= K * (4%:R * C) ^+ k.
Proof.
move=> t_le1; have K_ge0 : 0 <= K by apply: size1_ge0.
have powC m : 0 <= C ^+ m by rewrite exprn_ge0 ?C_ge0.
have X_leC : size1 (N + t *: E) <= C.
  apply: le_trans (size1D _ _) _; rewrite ler_add2l size1Z.
  by rewrite ler_pimull ?size1_ge0.
elim: k => [|k IH] /=.
  by rewrite expr0 mulr1 /size1 big1 ?size1_ge0 // => i _; rewrite big1 // => j _; rewrite mxE normr0.
apply: le_trans (size1D _ _) _; rewrite exprS.
apply: (@le_trans _ _ (C * (K * (4%:R * C) ^+ k) + C * (K * (4%:R * C) ^+ k))).
  apply: ler_add; apply: le_trans (size1M _ _) _; apply: ler_pmul; rewrite ?size1_ge0 ?X_leC ?E_leC //.
  apply: le_trans (first_order_le _) _; rewrite ler_wpmul2l // !exprMn ler_wpmul2r //.
  by rewrite ler_expn2r ?nnegrE ?ler0n // ler_nat.
have -> : K * (4%:R * C * (4%:R * C) ^+ k) = 4%:R * (C * (K * (4%:R * C) ^+ k)) by move: (_ ^+ k) => x; ring.
rewrite -mulr2n -[_ *+ 2]mulr_natl ler_wpmul2r ?ler_nat // mulr_ge0 ?C_ge0 // mulr_ge0 // exprn_ge0 //.
by rewrite mulr_ge0 ?C_ge0 ?ler0n.
Qed.

End Bounds.

(* The trace of the first order is that of k E N^(k-1), as the trace is cyclic. *)
Lemma trace_first_order N E m k :
  \tr (N ^+ m *m first_order N E k) = \sum_(l < k) \tr (E *m N ^+ (k + m).-1).
Proof.
elim: k m => [|k IH] m /=; first by rewrite mulmx0 mxtrace0 big_ord0.
rewrite mulmxDr mxtraceD.
have -> : N ^+ m *m (N *m first_order N E k) = N ^+ m.+1 *m first_order N E k by rewrite mulmxA exprSr.
have -> : \tr (N ^+ m *m (E *m N ^+ k)) = \tr (E *m N ^+ (k + m)) by rewrite mxtrace_mulC -mulmxA exprD.
by rewrite IH big_ord_recr /= addnS.
Qed.

Section OneEntry.
Variables (N : 'M[R]_d) (i j : 'I_d).
Local Notation E := (delta_mx i j : 'M[R]_d).

Lemma trace_delta_mul A : \tr (E *m A) = A j i.
Proof.
rewrite mxtrace_mulC /mxtrace (bigD1 j) //= big1 ?addr0 => [|l /negbTE lj].
  by rewrite mxE (bigD1 i) //= big1 ?addr0 => [|m /negbTE mi]; rewrite !mxE ?eqxx ?mulr1 // mi mulr0.
by rewrite mxE big1 // => m _; rewrite mxE lj andbF mulr0.
Qed.

Let u : R^nat := fun k => \tr (first_order N E k) / k`!%:R.
Let v t : R^nat := fun k => \tr (second_order N E t k) / k`!%:R.

Lemma uE k : u k.+1 = exp_terms N j i k.
Proof.
rewrite /u; have := trace_first_order N E 0 k.+1; rewrite expr0 mul1mx => ->.
rewrite (eq_bigr (fun=> (N ^+ k) j i)) => [|l _]; last by rewrite addn0 trace_delta_mul.
rewrite sumr_const card_ord /exp_terms factS natrM -[_ *+ _]mulr_natl.
by rewrite -mulf_div divff ?mul1r // pnatr_eq0.
Qed.

Lemma u_cvg : series u --> expm N j i.
Proof.
have u0 : u 0%N = 0 by rewrite /u /= mxtrace0 mul0r.
rewrite -(cvg_shiftS _) (_ : [sequence _]_k = series (exp_terms N j i)).
  by rewrite mxE; apply: expm_cvg.
apply/funext => k; rewrite /= /series /= big_nat_recl // u0 add0r.
by apply: eq_bigr => l _; rewrite uE.
Qed.

Lemma terms_expansion t : trace_terms (N + t *: E) = trace_terms N + t *: u + t ^+ 2 *: v t.
Proof.
apply/funext => k; rewrite -[RHS]/(trace_terms N k + t * u k + t ^+ 2 * v t k).
by rewrite /trace_terms power_expansion !mxtraceD !mxtraceZ !mulrDl -!mulrA.
Qed.

(* d tr exp(N) / dN_ij = exp(N)_ji *)
Theorem trace_expm_derive : is_derive (0 : R) 1 (fun t => \tr (expm (N + t *: E))) (expm N j i).
Proof.
pose c : R := size1 (1%:M : 'M[R]_d); pose C : R := size1 N + size1 E.
pose f : R^nat := fun k => c * ((4%:R * C) ^+ k / k`!%:R).
pose g (t : R) : R^nat := t *: v t.
have C4_ge0 : 0 <= 4%:R * C by rewrite mulr_ge0 ?ler0n ?C_ge0.
have f_cvg : cvg (series f).
  rewrite (_ : f = c *: exp_coeff (4%:R * C)) //.
  exact/is_cvg_seriesZ/is_cvg_series_exp_coeff.
have small t : 0 < `|t| < 1 -> forall k, `|g t k| <= f k * `|t|.
  move=> /andP[_ t_lt1] k; rewrite /g /f [X in _ <= X]mulrC normrM ler_wpmul2l //.
  rewrite /v normrM [`|_^-1|]ger0_norm ?invr_ge0 ?ler0n // mulrA ler_wpmul2r ?invr_ge0 ?ler0n //.
  apply: le_trans (trace_le_size1 _) _; apply: second_order_le; exact: ltW.
have rest := lim_cvg_to_0_linear ltr01 f_cvg small.
have quotient t : t != 0 ->
    t^-1 *: (\tr (expm (N + t *: E)) - \tr (expm N)) = expm N j i + lim (series (g t)).
  move=> t_neq0.
  have eq_g : series (g t) = t^-1 *: (series (trace_terms (N + t *: E)) - series (trace_terms N)) - series u.
    apply/funext => k; rewrite terms_expansion !seriesD !seriesZ ?/g ?seriesZ.
    rewrite -[LHS]/(t * series (v t) k).
    rewrite -[RHS]/(t^-1 * ((series (trace_terms N) k + t * series u k + t ^+ 2 * series (v t) k)
      - series (trace_terms N) k) - series u k).
    by move: (series _ k) (series u k) (series (v t) k) => x y z; field.
  have : series (g t) --> t^-1 *: (\tr (expm (N + t *: E)) - \tr (expm N)) - expm N j i.
    rewrite eq_g; apply: cvgB; last exact: u_cvg.
    by apply: cvgZr; apply: cvgB; apply: trace_expm_cvg.
  by move=> /(cvg_lim _) -> //; rewrite addrCA subrr addr0.
pose F (t : R) : R := \tr (expm (N + t *: E)).
suff limit : h^-1 *: (F (h + 0) - F 0) @[h --> 0^'] --> expm N j i.
  exact: is_derive_of_limit.
have : (fun h => expm N j i + lim (series (g h))) @ 0^' --> expm N j i + 0.
  by apply: cvgD; [exact: cvg_cst | exact: rest].
rewrite addr0; apply: cvg_trans; apply: near_eq_cvg.
rewrite near_withinE; apply: filterE => h h_neq0.
by rewrite /F addr0 scale0r addr0 -quotient.
Qed.

End OneEntry.

(* Claim h. The gradient of log(tr exp(M ⊙ M) / d), entry by entry: the derivative along E_ij at M. *)
Theorem dag_gradient M i j (E := delta_mx i j : 'M[R]_d) :
  is_derive (0 : R) 1 (fun t => ln (\tr (expm (hadamard (M + t *: E) (M + t *: E))) / d%:R))
    (2%:R * M i j * expm (hadamard M M) j i / \tr (expm (hadamard M M))).
Proof.
set N := hadamard M M; pose s (t : R) : R := 2%:R * M i j * t + t ^+ 2.
have entries t : hadamard (M + t *: E) (M + t *: E) = N + s t *: E.
  apply/matrixP => k l; rewrite !mxE /s; case: (k == i) / eqP => [->|_]; case: (l == j) / eqP => [->|_] /=.
  - by move: (M i j) => m; ring.
  - by move: (M i l) => m; ring.
  - by move: (M k j) => m; ring.
  - by move: (M k l) => m; ring.
have s0 : s 0 = 0 by rewrite /s mulr0 expr0n addr0.
have s_derive : is_derive (0 : R) 1 s (2%:R * M i j).
  apply: is_derive_of_limit.
  have : (fun h : R => 2%:R * M i j + h) @ 0^' --> 2%:R * M i j + 0.
    by apply: cvgD; [exact: cvg_cst | exact: cvg_within].
  rewrite addr0; apply: cvg_trans; apply: near_eq_cvg; rewrite near_withinE; apply: filterE => h h_neq0.
  rewrite s0 addr0 subr0 /s -[RHS]/(h^-1 * (2%:R * M i j * h + h ^+ 2)).
  by move: (M i j) => m; field.
pose G (r : R) : R := \tr (expm (N + r *: E)).
have G_derive : is_derive (s 0) 1 G (expm N j i) by rewrite s0; apply: trace_expm_derive.
have Gs_derive := is_derive1_comp G_derive s_derive.
have Gs t : (G \o s) t = \tr (expm (hadamard (M + t *: E) (M + t *: E))) by rewrite /= /G -entries.
have pos t : 0 < (G \o s) t.
  by rewrite Gs (lt_le_trans (width_gt0R R n)) // trace_expm_ge_width //; apply: hadamard_nonnegative.
have ln_derive := is_derive1_comp (is_derive1_ln (pos 0)) Gs_derive.
have at0 : (G \o s) 0 = \tr (expm N) by rewrite /= s0 /G scale0r addr0.
have all_derive := is_deriveB ln_derive (is_derive_cst (ln d%:R : R) (0 : R) 1).
rewrite (_ : (fun t => _) = (@ln R) \o (G \o s) - cst (ln d%:R)); last first.
  by apply/funext => t; rewrite -Gs ln_div ?posrE ?width_gt0R.
suff -> : 2%:R * M i j * expm N j i / \tr (expm N) = ((G \o s) 0)^-1 * (expm N j i * (2%:R * M i j)) - 0 by [].
by rewrite at0 subr0 [RHS]mulrC; congr (_ / _); rewrite mulrC.
Qed.

End Gradient.
