package check

import "strings"

// Rule is a CEL rule of a CRD with what a server estimates that it costs at most.
type Rule struct{}

func (c *checker) costs(*document) {}

func (r *Rule) writeText(*strings.Builder) {}
