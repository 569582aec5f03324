package cel

import (
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
)

// variables holds the variables that an expression can reference. It implements interpreter.Activation.
type variables struct{ self, oldSelf ref.Val } // a nil oldSelf means that oldSelf is undefined

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

// ruleVariables holds the variables for the rules of one value. plain is for rules without optionalOldSelf, and
// optional for rules with it.
type ruleVariables struct{ plain, optional variables }

func newRuleVariables(t *ruleTree, l *valuePair, rules []compiledRule) *ruleVariables {
	v := &ruleVariables{plain: variables{self: viewOf(t.celNode, l.value)}}
	v.optional = v.plain
	for i := range rules {
		if rules[i].usesOldSelf { // only then a messageExpression can use oldSelf too
			v.optional.oldSelf = types.OptionalNone
			if l.old != nil {
				v.plain.oldSelf = viewOf(t.celNode, l.old)
				v.optional.oldSelf = types.OptionalOf(v.plain.oldSelf)
			}
			break
		}
	}
	return v
}

// of returns the variables for the rule r.
func (v *ruleVariables) of(r *compiledRule) *variables {
	if r.IsOldSelfOptional() {
		return &v.optional
	}
	return &v.plain
}
