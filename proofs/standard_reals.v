(* Everywhere else R is any realType of MathComp-Analysis. The reals of Coq's standard library are one, so no theorem is
   about nothing; here are three of them, of those reals. *)
From Coq Require Import Reals.
From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp Require Import reals Rstruct.
From plga Require Import softmax attention power_law walks.

Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.

Import GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Definition standard_reals : realType := [realType of R].

Theorem standard_softmax_eq_iff (T : finType) (m : pred T) (x y : T -> standard_reals) :
  (forall i, m i -> softmax m x i = softmax m y i) <-> exists c, forall i, m i -> x i = y i + c.
Proof. exact: softmax_eq_iff. Qed.

Theorem standard_identity_is_sdpa S T d e (mask : 'I_S -> pred 'I_T) (q : 'M[standard_reals]_(S, d))
    (k : 'M[standard_reals]_(T, d)) (v : 'M[standard_reals]_(T, e)) :
  attention mask 1%:M q k v = sdpa mask q k v.
Proof. exact: plga_identity_is_sdpa. Qed.

Theorem standard_notears n (N : 'M[standard_reals]_n.+1) : nonnegative N -> \tr (expm N) = n.+1%:R <-> acyclic N.
Proof. exact: notears. Qed.
