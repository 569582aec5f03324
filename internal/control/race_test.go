//go:build race

package control_test

const slower = 4
