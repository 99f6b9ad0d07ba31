(* The determinant against singular values (arXiv:2608.10288): near-singular operators. Of the singular values only what
   defines them is used: the largest bounds how far a vector is stretched, the smallest is the stretch of some unit vector. *)
From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp.algebra_tactics Require Import ring.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Determinant.
Variable R : rcfType.

(* u · v and ‖v‖² of row vectors *)
Definition dot n (u v : 'rV[R]_n) : R := (u *m v^T) 0 0.
Definition sqnorm n (v : 'rV[R]_n) : R := dot v v.

Lemma sqnormE n (v : 'rV[R]_n) : sqnorm v = \sum_j v 0 j ^+ 2.
Proof. by rewrite /sqnorm /dot mxE; apply: eq_bigr => j _; rewrite mxE expr2. Qed.

Lemma sqnorm_ge0 n (v : 'rV[R]_n) : 0 <= sqnorm v.
Proof. by rewrite sqnormE; apply: sumr_ge0 => j _; apply: sqr_ge0. Qed.

Lemma sqnorm_eq0 n (v : 'rV[R]_n) : (sqnorm v == 0) = (v == 0).
Proof.
apply/idP/eqP => [|->]; last by rewrite /sqnorm /dot mul0mx mxE.
rewrite sqnormE psumr_eq0 => [/allP zero|j _]; last exact: sqr_ge0.
by apply/rowP => j; have := zero j (mem_index_enum j); rewrite sqrf_eq0 mxE => /eqP.
Qed.

Definition orthogonal n (H : 'M[R]_n) := H *m H^T = 1%:M.

Lemma sqnorm_orthogonal n (H : 'M[R]_n) (v : 'rV[R]_n) : orthogonal H -> sqnorm (v *m H) = sqnorm v.
Proof. by move=> orth; rewrite /sqnorm /dot trmx_mul mulmxA -[v *m H *m _]mulmxA orth mulmx1. Qed.

Lemma orthogonal_tr n (H : 'M[R]_n) : orthogonal H -> orthogonal H^T.
Proof. by rewrite /orthogonal trmxK => /mulmx1C. Qed.

Lemma det_orthogonal n (H : 'M[R]_n) : orthogonal H -> \det H ^+ 2 = 1.
Proof. by move=> /(congr1 determinant); rewrite det_mulmx det_tr det1 -expr2. Qed.

(* A reflection (Householder) turns any row into a multiple of the first unit row. *)
Lemma reflection n (a : 'rV[R]_n.+1) : exists2 H, orthogonal H & a *m H = Num.sqrt (sqnorm a) *: delta_mx 0 0.
Proof.
set r := Num.sqrt _; set e := delta_mx 0 0; pose w := a - r *: e.
have r2 : r ^+ 2 = sqnorm a by rewrite sqr_sqrtr ?sqnorm_ge0.
have [/eqP|w_neq0] := eqVneq w 0.
  by rewrite subr_eq0 => /eqP eq_a; exists 1%:M; rewrite /orthogonal ?trmx1 mulmx1.
pose c := 2%:R / sqnorm w; have ww_neq0 : sqnorm w != 0 by rewrite sqnorm_eq0.
have ww : w *m w^T = (sqnorm w)%:M by rewrite [LHS]mx11_scalar.
have [P [P_sym P2 aP]] : exists P : 'M[R]_n.+1, [/\ P^T = P, P *m P = sqnorm w *: P & a *m P = a *m w^T *m w].
  exists (w^T *m w); rewrite trmx_mul trmxK; split=> //; last by rewrite mulmxA.
  by rewrite mulmxA -[w^T *m w *m w^T]mulmxA ww mul_mx_scalar -scalemxAl.
exists (1%:M - c *: P).
  have H_sym : (1%:M - c *: P)^T = 1%:M - c *: P.
    by apply/matrixP => i j; rewrite -[in RHS]P_sym !mxE eq_sym.
  rewrite /orthogonal H_sym mulmxBl mul1mx mulmxBr mulmx1 -!scalemxAl -!scalemxAr P2 !scalerA.
  have -> : c * c * sqnorm w = c + c by rewrite /c; field.
  by rewrite scalerDl opprB addrK subrK.
have dotE (u : 'rV[R]_n.+1) : dot u w = dot u a - r * u 0 0.
  rewrite /dot !mxE (bigD1 0) //= [in RHS](bigD1 0) //= -addrA.
  under [in RHS]eq_bigr do rewrite mxE.
  rewrite !mxE eqxx /= mulr1 mulrBr [r * _]mulrC -!addrA; congr (_ + _); rewrite addrC; congr (_ - _).
  by apply: eq_bigr => j /negbTE j_neq0; rewrite !mxE j_neq0 andbF mulr0 subr0.
have aw : a *m w^T = (sqnorm w / 2%:R)%:M.
  rewrite [LHS]mx11_scalar; congr _%:M; rewrite -/(dot a w); apply: (@mulIf _ 2%:R); first by rewrite pnatr_eq0.
  rewrite divfK ?pnatr_eq0 // /sqnorm [dot w w]dotE.
  have -> : dot w a = dot a w by rewrite /dot -[w *m _]trmxK trmx_mul trmxK mxE.
  have -> : w 0 0 = a 0 0 - r by rewrite !mxE !eqxx mulr1.
  rewrite dotE; have -> : dot a a = r ^+ 2 by rewrite r2.
  by move: (a 0 0) (r : R) => a0 r0; ring.
rewrite mulmxBr mulmx1 -scalemxAr aP aw mul_scalar_mx scalerA.
have -> : c * (sqnorm w / 2%:R) = 1 by rewrite /c; field; rewrite ww_neq0.
by rewrite scale1r /w opprB addrCA subrr addr0.
Qed.

(* Hadamard's inequality. *)
Theorem hadamard_inequality n (A : 'M[R]_n) : \det A ^+ 2 <= \prod_i sqnorm (row i A).
Proof.
elim: n A => [|n IH] A; first by rewrite det_mx00 big_ord0 expr1n.
have [H orth first_row] := reflection (row 0 A); pose B := A *m H.
have -> : \det A ^+ 2 = \det B ^+ 2 by rewrite /B det_mulmx exprMn (det_orthogonal orth) mulr1.
have rows i : sqnorm (row i A) = sqnorm (row i B) by rewrite row_mul sqnorm_orthogonal.
have B0 j : B 0 j = Num.sqrt (sqnorm (row 0 A)) * (j == 0)%:R.
  have /rowP/(_ j) : row 0 B = Num.sqrt (sqnorm (row 0 A)) *: delta_mx 0 0 by rewrite row_mul.
  by rewrite !mxE eqxx.
rewrite (expand_det_row B 0) (bigD1 0) //= big1 ?addr0 => [|j /negbTE j_neq0]; last first.
  by rewrite B0 j_neq0 mulr0 mul0r.
rewrite B0 eqxx mulr1 /cofactor expr0 mul1r exprMn sqr_sqrtr ?sqnorm_ge0 // big_ord_recl.
apply: ler_wpmul2l; first exact: sqnorm_ge0.
apply: le_trans (IH _) _; apply: ler_prod => i _; rewrite sqnorm_ge0 rows !sqnormE /=.
rewrite [X in _ <= X]big_ord_recl ler_paddl ?sqr_ge0 //.
by apply: ler_sum => j _; rewrite !mxE.
Qed.

(* Claim e. If no unit vector is stretched by more than s, and one unit vector is by t at most, then |det G| ≤ s^(d-1) t: with
   s and t the largest and the smallest singular value, det G is small wherever the smallest is. *)
Theorem determinant_bound n (G : 'M[R]_n.+1) (s t : R) (v : 'rV[R]_n.+1) : 0 <= s -> 0 <= t ->
  (forall w, sqnorm (w *m G) <= s ^+ 2 * sqnorm w) -> sqnorm v = 1 -> sqnorm (v *m G) <= t ^+ 2 ->
  `|\det G| <= s ^+ n * t.
Proof.
move=> s_ge0 t_ge0 stretch unit_v small.
have [H orth] := reflection v; rewrite unit_v sqrtr1 scale1r => vH.
have v_row : v = row 0 H^T by rewrite rowE -vH -mulmxA orth mulmx1.
rewrite -(@ler_pexpn2r _ 2) ?nnegrE ?normr_ge0 ?mulr_ge0 ?exprn_ge0 // real_normK ?num_real //.
have -> : \det G ^+ 2 = \det (H^T *m G) ^+ 2 by rewrite det_mulmx exprMn det_tr (det_orthogonal orth) mul1r.
apply: le_trans (hadamard_inequality _) _; rewrite big_ord_recl row_mul -v_row exprMn mulrC exprAC.
have units i : sqnorm (row i H^T) = 1.
  rewrite rowE sqnorm_orthogonal; last exact: orthogonal_tr.
  by rewrite sqnormE (bigD1 i) //= big1 ?addr0 => [|j /negbTE ji]; rewrite mxE ?ji ?eqxx ?expr1n // andbF expr0n.
apply: ler_pmul => //; first exact: sqnorm_ge0.
  by apply: prodr_ge0 => i _; apply: sqnorm_ge0.
rewrite -[n in X in _ <= X]card_ord -prodr_const; apply: ler_prod => i _; rewrite sqnorm_ge0 /= row_mul.
by apply: le_trans (stretch _) _; rewrite units mulr1.
Qed.

(* Claim e, for a matrix whose singular value decomposition is given: |det G| is the product of the singular values. *)
Theorem determinant_svd n (U V : 'M[R]_n) (s : 'rV[R]_n) : orthogonal U -> orthogonal V -> (forall i, 0 <= s 0 i) ->
  `|\det (U *m diag_mx s *m V^T)| = \prod_i s 0 i.
Proof.
move=> orthU orthV s_ge0; rewrite !det_mulmx det_tr det_diag !normrM.
have one H : orthogonal H -> `|\det (H : 'M[R]_n)| = 1.
  move=> /det_orthogonal det2; apply/eqP.
  by rewrite -(@eqr_expn2 _ 2) ?normr_ge0 ?ler01 // expr1n real_normK ?num_real // det2.
by rewrite !one // mul1r mulr1 ger0_norm // prodr_ge0.
Qed.

End Determinant.
