(* Rotary embedding as a group of rotations, its commutant, and relative scores (arXiv:2608.10288).

   Rows are multiplied from the right, as the library does: a query q at position s becomes q R_s. *)
From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp Require Import reals trigo.
From mathcomp.algebra_tactics Require Import ring.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

(* ---- Blocks: a matrix of size n * 2 as n x n blocks of 2 x 2; mxvec_index a i is the number of coordinate i of plane a. *)

Section Blocks.
Variables (R : ringType) (n : nat).
Implicit Types (G H : 'M[R]_(n * 2)) (f : 'I_n -> 'I_n -> 'M[R]_2).

Definition plane (k : 'I_(n * 2)) : 'I_n * 'I_2 := enum_val (cast_ord (esym (mxvec_cast n 2)) k).

Lemma plane_index a i : plane (mxvec_index a i) = (a, i).
Proof. by rewrite /plane /mxvec_index cast_ordK enum_rankK. Qed.

Definition block G a b : 'M[R]_2 := \matrix_(i, j) G (mxvec_index a i) (mxvec_index b j).
Definition of_blocks f : 'M[R]_(n * 2) := \matrix_(k, l) f (plane k).1 (plane l).1 (plane k).2 (plane l).2.

Lemma of_blocksK f a b : block (of_blocks f) a b = f a b.
Proof. by apply/matrixP => i j; rewrite !mxE !plane_index. Qed.

Lemma block_inj G H : (forall a b, block G a b = block H a b) -> G = H.
Proof.
move=> same; apply/matrixP => k l; case/mxvec_indexP: k => a i; case/mxvec_indexP: l => b j.
by have /matrixP/(_ i j) := same a b; rewrite !mxE.
Qed.

Lemma block_mul G H a b : block (G *m H) a b = \sum_c block G a c *m block H c b.
Proof.
apply/matrixP => i j; rewrite !mxE summxE (reindex _ (curry_mxvec_bij _ _)) /=.
under [RHS]eq_bigr do rewrite mxE.
by rewrite pair_bigA /=; apply: eq_bigr => [[c k]] _; rewrite !mxE.
Qed.

Lemma block_tr G a b : block G^T a b = (block G b a)^T.
Proof. by apply/matrixP => i j; rewrite !mxE. Qed.

Lemma block1 a b : block 1%:M a b = (if a == b then 1%:M else 0).
Proof.
apply/matrixP => i j; rewrite !mxE.
have -> : (mxvec_index a i == mxvec_index b j) = (a == b) && (i == j).
  apply/eqP/andP => [same|[/eqP -> /eqP ->] //].
  by have := plane_index a i; rewrite same plane_index => -[-> ->].
by case: eqP => _; rewrite !mxE.
Qed.

(* A block-diagonal matrix. *)
Definition planes (g : 'I_n -> 'M[R]_2) := of_blocks (fun a b => if a == b then g a else 0).

Lemma planesE g a b : block (planes g) a b = (if a == b then g a else 0).
Proof. exact: of_blocksK. Qed.

Lemma block_mul_planes G g a b : block (G *m planes g) a b = block G a b *m g b.
Proof.
rewrite block_mul (bigD1 b) //= planesE eqxx big1 ?addr0 // => c /negbTE cb.
by rewrite planesE cb mulmx0.
Qed.

Lemma block_planes_mul G g a b : block (planes g *m G) a b = g a *m block G a b.
Proof.
rewrite block_mul (bigD1 a) //= planesE eqxx big1 ?addr0 // => c.
by rewrite eq_sym planesE => /negbTE ->; rewrite mul0mx.
Qed.

Lemma planes_mul g h : planes g *m planes h = planes (fun a => g a *m h a).
Proof.
apply: block_inj => a b; rewrite block_mul_planes !planesE.
by case: eqP => [->|_]; rewrite ?mul0mx.
Qed.

Lemma planes1 : planes (fun=> 1%:M) = 1%:M.
Proof. by apply: block_inj => a b; rewrite planesE block1. Qed.

Lemma planes_tr g : (planes g)^T = planes (fun a => (g a)^T).
Proof.
apply: block_inj => a b; rewrite block_tr !planesE eq_sym.
by case: eqP => [->|_]; rewrite ?trmx0.
Qed.

Lemma eq_planes g h : g =1 h -> planes g = planes h.
Proof. by move=> gh; apply: block_inj => a b; rewrite !planesE gh. Qed.

End Blocks.

(* ---- One plane. *)

Section OnePlane.
Variable R : realType.
Implicit Types (x y a b : R) (M : 'M[R]_2).

(* The quarter turn: J² = -1, so that a + b J multiplies as the complex number a + i b. *)
Definition turn : 'M[R]_2 := \matrix_(i, j) ((i < j)%N%:R - (j < i)%N%:R).
Definition complex_mx a b : 'M[R]_2 := a%:M + b *: turn.
Definition rotation x : 'M[R]_2 := complex_mx (cos x) (sin x).

Lemma ord2P (P : 'I_2 -> Prop) : P 0 -> P 1 -> forall i, P i.
Proof.
by move=> P0 P1 [[|[|//]] lti]; [have -> : Ordinal lti = 0 by exact: val_inj | have -> : Ordinal lti = 1 by exact: val_inj].
Qed.

Lemma mx2P (A B : 'M[R]_2) : A 0 0 = B 0 0 -> A 0 1 = B 0 1 -> A 1 0 = B 1 0 -> A 1 1 = B 1 1 -> A = B.
Proof. by move=> *; apply/matrixP; apply: ord2P; apply: ord2P. Qed.

Lemma mul2E (A B : 'M[R]_2) i j : (A *m B) i j = A i 0 * B 0 j + A i 1 * B 1 j.
Proof.
rewrite mxE !big_ord_recl big_ord0 addr0.
by have -> : lift ord0 ord0 = 1 :> 'I_2 by exact: val_inj.
Qed.

Lemma turn2 : turn *m turn = (- 1)%:M.
Proof. by apply: mx2P; rewrite !mul2E !mxE /=; ring. Qed.

Lemma turn_tr : turn^T = - turn.
Proof. by apply: mx2P; rewrite !mxE /=; ring. Qed.

Lemma complex_mul a b x y : complex_mx a b *m complex_mx x y = complex_mx (a * x - b * y) (a * y + b * x).
Proof.
by apply: mx2P; rewrite !mul2E !mxE /=; ring.
Qed.

Lemma complex_tr a b : (complex_mx a b)^T = complex_mx a (- b).
Proof. by rewrite /complex_mx linearD linearZ /= tr_scalar_mx turn_tr scalerN scaleNr. Qed.

(* The matrix in full. *)
Theorem rotationE x : rotation x = \matrix_(i, j) if i == j then cos x else if (i < j)%N then sin x else - sin x.
Proof. by apply: mx2P; rewrite !mxE /=; ring. Qed.

(* Claim 7. Angles add: a homomorphism ... *)
Theorem rotationD x y : rotation (x + y) = rotation x *m rotation y.
Proof. by rewrite /rotation complex_mul cosD sinD addrC [sin x * _ + _]addrC [_ + cos x * cos y]addrC. Qed.

Theorem rotation0 : rotation 0 = 1%:M.
Proof. by rewrite /rotation /complex_mx cos0 sin0 scale0r addr0. Qed.

Lemma rotation_tr x : (rotation x)^T = rotation (- x).
Proof. by rewrite complex_tr /rotation cosN sinN. Qed.

(* ... into the orthogonal matrices ... *)
Theorem rotation_orthogonal x : (rotation x)^T *m rotation x = 1%:M.
Proof. by rewrite rotation_tr -rotationD addNr rotation0. Qed.

(* ... of determinant one: SO(2). *)
Theorem rotation_det x : \det (rotation x) = 1.
Proof.
rewrite [x](splitr x) rotationD det_mulmx.
have /(congr1 determinant) := rotation_orthogonal (x / 2%:R).
by rewrite det_mulmx det_tr det1.
Qed.

Lemma comm_turn M : M *m turn = turn *m M -> M = complex_mx (M 0 0) (M 0 1).
Proof.
move=> comm; have /matrixP/(_ 0 0) := comm; have /matrixP/(_ 0 1) := comm.
rewrite !mul2E [turn 0 0]mxE [turn 0 1]mxE [turn 1 0]mxE [turn 1 1]mxE /=.
rewrite !subr0 !sub0r !mulr0 !mul0r !addr0 !add0r mulr1 mulrN1 !mul1r => e01 e00.
have e10 : M 1 0 = - M 0 1 by rewrite e00.
by apply: mx2P; rewrite !mxE /= ?e10 -?e01; ring.
Qed.

Lemma turn_comm a b : complex_mx a b *m turn = turn *m complex_mx a b.
Proof. by rewrite /complex_mx mulmxDl mulmxDr scalar_mxC -scalemxAl -scalemxAr. Qed.

(* Claim 7. What commutes with one rotation by an angle that is no multiple of π is a complex number a + b J. *)
Theorem rotation_commutant x M : sin x != 0 ->
  M *m rotation x = rotation x *m M <-> exists a b, M = complex_mx a b.
Proof.
move=> sin_neq0; split=> [comm|[a [b ->]]].
  exists (M 0 0), (M 0 1); apply: comm_turn; apply: (scalerI sin_neq0).
  move: comm; rewrite /rotation /complex_mx mulmxDr mulmxDl scalar_mxC => /addrI.
  by rewrite -scalemxAr -scalemxAl.
by rewrite /rotation !complex_mul; congr complex_mx; ring.
Qed.

End OnePlane.

(* ---- All planes: frequencies θ_a, a < n, width d = 2n. *)

Section AllPlanes.
Variables (R : realType) (n : nat) (theta : 'I_n -> R).
Local Notation d := (n * 2)%N.
Implicit Types (G : 'M[R]_d) (q k : 'rV[R]_d) (s t u : int).

(* R_s, the rotation of position s: plane a turns by s θ_a. *)
Definition rotary s : 'M[R]_d := planes (fun a => rotation (s%:~R * theta a)).

Theorem rotaryD s t : rotary (s + t) = rotary s *m rotary t.
Proof. by rewrite planes_mul; apply: eq_planes => a; rewrite -rotationD intrD mulrDl. Qed.

Theorem rotary0 : rotary 0 = 1%:M.
Proof. by rewrite -planes1; apply: eq_planes => a; rewrite mul0r rotation0. Qed.

Theorem rotary_tr s : (rotary s)^T = rotary (- s).
Proof. by rewrite planes_tr; apply: eq_planes => a; rewrite rotation_tr mulrNz mulNr. Qed.

Theorem rotary_orthogonal s : (rotary s)^T *m rotary s = 1%:M.
Proof. by rewrite rotary_tr -rotaryD addNr rotary0. Qed.

Definition commutes G := forall s, G *m rotary s = rotary s *m G.

(* Score of query q at position s and key k at position t, before the scale 1/√d. *)
Definition score G s t q k : 'M[R]_1 := (q *m rotary s) *m G *m (k *m rotary t)^T.

(* Claim 7. Where G commutes with the rotations the score depends on the relative position alone, ... *)
Theorem score_relative G s t q k : commutes G -> score G s t q k = q *m G *m rotary (s - t) *m k^T.
Proof.
move=> comm; rewrite /score trmx_mul rotary_tr -!mulmxA; congr (_ *m _).
by rewrite mulmxA -comm -!mulmxA; congr (_ *m _); rewrite mulmxA -rotaryD.
Qed.

(* Claim a. ... and only there: a score that is the same at all positions with the same difference needs a G that commutes. *)
Theorem score_relative_iff G :
  (forall q k s t u, score G (s + u) (t + u) q k = score G s t q k) <-> commutes G.
Proof.
split=> [relative u|comm q k s t u]; last first.
  have same : (s + u) - (t + u) = s - t by rewrite opprD addrACA subrr addr0.
  by rewrite (score_relative _ _ _ _ comm) same -(score_relative _ _ _ _ comm).
have same : rotary u *m G *m (rotary u)^T = G.
  apply/matrixP => i j; have := relative (delta_mx 0 i) (delta_mx 0 j) 0 0 u.
  rewrite /score !add0r rotary0 !mulmx1 trmx_mul => /matrixP/(_ 0 0).
  rewrite trmx_delta !mulmxA -[_ *m rotary u *m G]mulmxA -[X in X *m delta_mx _ _]mulmxA.
  by rewrite -!rowE -!colE !mxE.
by rewrite -[in LHS]same -!mulmxA rotary_orthogonal mulmx1.
Qed.

(* G is absorbed into the query before the rotation: with it, what is left is SDPA's score. *)
Theorem score_absorbed G s t q k : commutes G -> score G s t q k = score 1%:M s t (q *m G) k.
Proof. by move=> comm; rewrite /score mulmx1 -!mulmxA; congr (_ *m _); rewrite !mulmxA comm. Qed.

(* Frequencies without resonance: e^{iθ_a} differs from e^{iθ_b} and from e^{-iθ_b} (b ≠ a), and is not real. *)
Definition nonresonant := (forall a, sin (theta a) != 0) /\ (forall a b, a != b -> cos (theta a) != cos (theta b)).

(* The block-complex matrices: in each plane a complex number, nothing between planes. M a 0 + i M a 1 is that of plane a. *)
Definition block_complex (M : 'M[R]_(n, 2)) : 'M[R]_d := planes (fun a => complex_mx (M a 0) (M a 1)).

Lemma block_complex_commutes M : commutes (block_complex M).
Proof. by move=> s; rewrite !planes_mul; apply: eq_planes => a; rewrite /rotation !complex_mul; congr complex_mx; ring. Qed.

Lemma rotationV_sum x : rotation x + (rotation x)^T = (cos x *+ 2)%:M :> 'M[R]_2.
Proof.
rewrite /rotation complex_tr /complex_mx addrACA scaleNr subrr addr0.
by rewrite -raddfD mulr2n.
Qed.

(* Claim a. Without resonance the commutant of a single step R_1, and so of the whole group, is the block-complex matrices. *)
Theorem rotary_commutant1 G : nonresonant ->
  G *m rotary 1 = rotary 1 *m G <-> exists M, G = block_complex M.
Proof.
move=> [sin_neq0 cos_neq]; split=> [comm|[M ->]]; last exact: block_complex_commutes.
have blocks a b : block G a b *m rotation (theta b) = rotation (theta a) *m block G a b.
  have := congr1 (fun H => block H a b) comm.
  by rewrite block_mul_planes block_planes_mul !mul1r.
have off a b : a != b -> block G a b = 0.
  move=> /cos_neq neq; set X := block G a b in blocks *.
  have turned : X *m (rotation (theta b))^T = (rotation (theta a))^T *m X.
    have rr : rotation (theta b) *m (rotation (theta b))^T = 1%:M.
      by rewrite rotation_tr -rotationD subrr rotation0.
    have : (rotation (theta a))^T *m (X *m rotation (theta b)) *m (rotation (theta b))^T
         = (rotation (theta a))^T *m (rotation (theta a) *m X) *m (rotation (theta b))^T by rewrite blocks.
    by rewrite !mulmxA rotation_orthogonal mul1mx -[_ *m rotation _ *m _]mulmxA rr mulmx1 => <-.
  have : (cos (theta b) *+ 2) *: X = (cos (theta a) *+ 2) *: X.
    rewrite -mul_mx_scalar -mul_scalar_mx -!rotationV_sum mulmxDr mulmxDl.
    by rewrite turned [X *m rotation _]blocks.
  move/eqP; rewrite -subr_eq0 -scalerBl scaler_eq0 => /orP[|/eqP //].
  by rewrite -mulrnBl mulrn_eq0 /= subr_eq0 eq_sym (negbTE neq).
exists (\matrix_(a, i) block G a a 0 i); apply: block_inj => a b; rewrite planesE !mxE.
case: eqP => [<-|/eqP /off //]; have [a0 [b0 eqG]] := (rotation_commutant _ (sin_neq0 a)).1 (blocks a a).
rewrite {1}eqG; congr complex_mx; move: eqG => /matrixP eqG.
  by have := eqG 0 0; rewrite !mxE /= => ->; ring.
by have := eqG 0 1; rewrite !mxE /= => ->; ring.
Qed.

Theorem rotary_commutant G : nonresonant -> commutes G <-> exists M, G = block_complex M.
Proof.
move=> nonres; split=> [comm|[M ->]]; last exact: block_complex_commutes.
by apply/(rotary_commutant1 G nonres); apply: comm.
Qed.

Lemma block_complex_linear : linear block_complex.
Proof.
move=> c M N; apply: block_inj => a b; rewrite planesE; apply/matrixP => i j.
have -> x : block (c *: block_complex M + block_complex N) a b i x
  = c * block (block_complex M) a b i x + block (block_complex N) a b i x by rewrite !mxE.
by rewrite !planesE; case: (a == b); rewrite !mxE; case: (i == j);
  rewrite ?mulr1n ?mulr0n ?mulr0 ?addr0 ?add0r // !mulrDl !mulrDr !mulrA // addrACA.
Qed.
Canonical block_complex_additive := Additive block_complex_linear.
Canonical block_complex_linear' := Linear block_complex_linear.

Lemma block_complex_inj : injective block_complex.
Proof.
move=> M N same; apply/matrixP => a i.
have := congr1 (fun G => block G a a) same; rewrite !planesE eqxx => /matrixP eqMN.
by move: i; apply: ord2P; [have := eqMN 0 0 | have := eqMN 0 1]; rewrite !mxE /= => e; move: e;
  rewrite ?mulr1n ?mulr0n ?subrr ?subr0 ?mulr0 ?mulr1 ?addr0 ?add0r.
Qed.

(* Claim a. That commutant is a vector space of dimension d = 2n. *)
Theorem rotary_commutant_dim : nonresonant -> \rank (cent_mx (mxvec (rotary 1))) = d.
Proof.
move=> nonres; set L := lin_mx block_complex.
have free : row_free L.
  apply/inj_row_free => v; rewrite -[v]vec_mxK mul_vec_lin => /(canRL mxvecK).
  by rewrite linear0 -[0 in RHS](linear0 block_complex_linear') => /block_complex_inj ->; rewrite linear0.
rewrite -[RHS](eqP free); apply: eqmx_rank; apply/andP; split; apply/rV_subP => u.
  rewrite -{1}[u]vec_mxK => /cent_rowP/(_ 0); rewrite row_id mxvecK => comm.
  have [|M eqM] := (rotary_commutant1 (vec_mx u) nonres).1.
    by rewrite comm.
  by rewrite -[u]vec_mxK eqM -mul_vec_lin submxMl.
move=> /submxP[w ->]; rewrite -[w]vec_mxK mul_vec_lin.
apply/cent_rowP => i; rewrite row_id mxvecK.
by have := block_complex_commutes (vec_mx w) 1.
Qed.

End AllPlanes.
