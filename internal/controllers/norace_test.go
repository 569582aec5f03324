//go:build !race

package controllers_test

const timeoutFactor = 1
