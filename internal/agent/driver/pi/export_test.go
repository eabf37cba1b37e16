package pi

// Classify is classify, for a table of what providers say.
var Classify = classify
