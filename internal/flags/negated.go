package flags

import (
	"strconv"

	"github.com/spf13/pflag"
)

// negated is the value of a flag that is true while the variable is false.
type negated bool

// String implements pflag.Value.
func (n *negated) String() string { return strconv.FormatBool(!bool(*n)) }

// Type implements pflag.Value.
func (*negated) Type() string { return "bool" }

// Set implements pflag.Value.
func (n *negated) Set(text string) error {
	on, err := strconv.ParseBool(text)
	*n = negated(!on)
	return err
}

// Negated declares a bool flag that sets *p to the opposite. Its default is the opposite of *p.
func Negated(fs *pflag.FlagSet, p *bool, name, usage string) {
	fs.Var((*negated)(p), name, usage)
	fs.Lookup(name).NoOptDefVal = "true"
}
