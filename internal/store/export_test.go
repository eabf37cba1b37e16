package store

// Choose is the statement behind Select, for EXPLAIN.
const Choose = choose
