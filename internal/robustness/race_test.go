//go:build race

package robustness_test

// slower is by how much the race detector makes megabytes of text take longer.
const slower = 5
