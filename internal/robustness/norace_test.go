//go:build !race

package robustness_test

// raceFactor is the factor by which the race detector slows the server and thus lengthens the timeouts of clients.
const raceFactor = 1
