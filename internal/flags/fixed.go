// Package flags declares flags that the package pflag does not offer. These are flags that accept only one value,
// negated flags, and pairs of flags that must be set together.
package flags

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

// Fixed declares a flag that accepts only its default. The help of the flag starts with the text in meaning.
func Fixed(fs *pflag.FlagSet, name, kind, value, meaning string) {
	fs.Var(&fixed{value, kind}, name, meaning+". Only the default is supported")
	if kind == "bool" {
		fs.Lookup(name).NoOptDefVal = "true"
	}
}
