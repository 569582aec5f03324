//go:build race

package controllers_test

const slower = 4
