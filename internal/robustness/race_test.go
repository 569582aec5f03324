//go:build race

package robustness_test

// raceFactor is the factor by which the race detector slows the processing of large bodies.
const raceFactor = 5
