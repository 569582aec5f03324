package main

import (
	"fmt"

	"github.com/spf13/pflag"
)

// fixed is the value of a flag of another program that Trellis cannot set. It accepts that one value.
type fixed struct{ value, kind string }

// String implements pflag.Value.
func (f *fixed) String() string { return f.value }

// Type implements pflag.Value.
func (f *fixed) Type() string { return f.kind }

// Set implements pflag.Value.
func (f *fixed) Set(value string) error {
	if value != f.value {
		return fmt.Errorf("only %q is supported", f.value)
	}
	return nil
}

// fix declares a flag that accepts only one value. meaning is the help text of the flag.
func fix(flags *pflag.FlagSet, name, kind, value, meaning string) {
	flags.Var(&fixed{value, kind}, name, meaning+"; the only value")
	if kind == "bool" {
		flags.Lookup(name).NoOptDefVal = "true"
	}
}
