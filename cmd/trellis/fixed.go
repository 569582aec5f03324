package main

import (
	"fmt"

	"github.com/spf13/pflag"
)

// fixed is the value of a flag that exists only for compatibility with another program. It accepts only its default.
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

// fix declares a flag that accepts only its default. The help of the flag starts with the text in meaning.
func fix(flags *pflag.FlagSet, name, kind, value, meaning string) {
	flags.Var(&fixed{value, kind}, name, meaning+". Only the default is supported")
	if kind == "bool" {
		flags.Lookup(name).NoOptDefVal = "true"
	}
}
