package schema

import "github.com/trellis-k8s/trellis/internal/object"

// Rules is the JSON of x-kubernetes-validations.
type Rules string

// Rule is an entry of x-kubernetes-validations. A nil field is missing.
type Rule struct {
	Rule, Message, MessageExpression, FieldPath string
	Reason                                      *string
	OptionalOldSelf                             *bool
}

// All decodes the rules.
func (r Rules) All() (all []Rule) {
	c := object.NewCursor([]byte(r))
	c.Elements(func(int) {
		var r Rule
		c.Fields(map[string]any{
			"rule": &r.Rule, "message": &r.Message, "messageExpression": &r.MessageExpression,
			"fieldPath": &r.FieldPath,
			"reason": func() {
				if c.Kind() == '"' {
					r.Reason = new(c.Text())
				}
			},
			"optionalOldSelf": func() {
				if c.Kind() != 'n' {
					r.OptionalOldSelf = new(c.Bool())
				}
			},
		})
		all = append(all, r)
	})
	return all
}

// IsOldSelfOptional reports whether the rule is evaluated if there is no old value.
func (r Rule) IsOldSelfOptional() bool { return r.OptionalOldSelf != nil && *r.OptionalOldSelf }
