package agent

// RestrictedResult is the Result of a read-only turn.
type RestrictedResult struct {
	*Result
	// Model is the model that answered: of the profile that was run in the end.
	Model string

	// Beyond the listing:

	// Before are the results of the profiles that had no capacity, in order. What
	// they cost was spent too.
	Before []*Result
}
