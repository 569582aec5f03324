package schema

import (
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
)

// variables are what an expression can name. They implement interpreter.Activation.
type variables struct{ self, oldSelf ref.Val } // oldSelf nil: there is none

// ResolveName implements interpreter.Activation.
func (v *variables) ResolveName(name string) (any, bool) {
	switch name {
	case selfVar:
		return v.self, true
	case oldSelfVar:
		return v.oldSelf, v.oldSelf != nil
	}
	return nil, false
}

// Parent implements interpreter.Activation.
func (v *variables) Parent() interpreter.Activation { return nil }

// ruleVariables are the variables of all rules that stand on one value.
type ruleVariables struct{ plain, optional variables }

func newRuleVariables(t *ruleTree, l *level, rules []compiledRule) *ruleVariables {
	v := &ruleVariables{plain: variables{self: t.seen.view(l.value)}}
	v.optional = v.plain
	for i := range rules {
		if rules[i].usesOldSelf { // else not even messages can name it
			v.optional.oldSelf = types.OptionalNone
			if l.old != nil {
				v.plain.oldSelf = t.seen.view(l.old)
				v.optional.oldSelf = types.OptionalOf(v.plain.oldSelf)
			}
			break
		}
	}
	return v
}

func (v *ruleVariables) of(r *compiledRule) *variables {
	if r.optionalOldSelf {
		return &v.optional
	}
	return &v.plain
}
