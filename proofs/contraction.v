(* Lipschitz maps: composition, iteration and contraction (arXiv:2608.10288). *)
From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp Require Import boolp classical_sets functions.
From mathcomp Require Import reals topology normedtype sequences signed.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.
Local Open Scope classical_set_scope.

Section Lipschitz.
Variable R : realType.

(* f stretches no distance by more than L. *)
Definition lipschitz_by (U V : normedModType R) (L : R) (f : U -> V) := forall x y, `|f x - f y| <= L * `|x - y|.

(* Claim 10. Constants multiply along a composition, as along the layers of a decoder, ... *)
Theorem lipschitz_comp (U V W : normedModType R) (L M : R) (f : V -> W) (g : U -> V) :
  0 <= L -> lipschitz_by L f -> lipschitz_by M g -> lipschitz_by (L * M) (f \o g).
Proof.
move=> L_ge0 lf lg x y; apply: le_trans (lf _ _) _.
by rewrite -mulrA ler_wpmul2l.
Qed.

(* ... and a residual connection adds one. *)
Theorem lipschitz_residual (U : normedModType R) (L : R) (f : U -> U) :
  lipschitz_by L f -> lipschitz_by (1 + L) (fun x => x + f x).
Proof.
move=> lf x y; rewrite mulrDl mul1r opprD addrACA.
by apply: le_trans (ler_norm_add _ _) _; rewrite ler_add2l.
Qed.

Section Iteration.
Variables (U : normedModType R) (L : R) (f : U -> U).

Theorem lipschitz_iter n : 0 <= L -> lipschitz_by L f -> lipschitz_by (L ^+ n) (iter n f).
Proof.
move=> L_ge0 lf; elim: n => [|n IH] x y; first by rewrite expr0 mul1r.
by rewrite exprS; apply: (lipschitz_comp L_ge0 lf IH).
Qed.

(* Below one there is at most one fixed point, ... *)
Theorem contraction_unique : L < 1 -> lipschitz_by L f -> forall x y, f x = x -> f y = y -> x = y.
Proof.
move=> L_lt1 lf x y fx fy; apply/eqP; rewrite -subr_eq0 -normr_eq0 eq_le normr_ge0 andbT.
have := lf x y; rewrite fx fy -subr_le0 -{1}[`|x - y|]mul1r -mulrBl.
by rewrite pmulr_rle0 // subr_gt0.
Qed.

(* ... iterates approach it geometrically, ... *)
Theorem contraction_rate n x p : 0 <= L -> lipschitz_by L f -> f p = p -> `|iter n f x - p| <= L ^+ n * `|x - p|.
Proof.
move=> L_ge0 lf fp; have iter_p : iter n f p = p by elim: n => //= n ->.
by rewrite -{1}iter_p; apply: lipschitz_iter.
Qed.

End Iteration.

(* ... and on a complete space there is one (Banach). *)
Theorem contraction_fixed_point (U : completeNormedModType R) (L : R) (f : U -> U) :
  0 <= L -> L < 1 -> lipschitz_by L f -> exists p, f p = p.
Proof.
move=> L_ge0 L_lt1 lf.
have ctr : is_contraction [fun of totalfun f].
  exists (NngNum L_ge0); split => //= -[x y] _; exact: lf.
have [||p _ fp] := banach_fixed_point ctr; [exact: closedT | by exists 0 | by exists p].
Qed.

End Lipschitz.
