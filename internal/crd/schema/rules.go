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
		c.Members(func(key string) {
			switch key {
			case "rule":
				r.Rule = c.Text()
			case "message":
				r.Message = c.Text()
			case "messageExpression":
				r.MessageExpression = c.Text()
			case "fieldPath":
				r.FieldPath = c.Text()
			case "reason":
				if c.Kind() == '"' {
					reason := c.Text()
					r.Reason = &reason
				}
			case "optionalOldSelf":
				if c.Kind() != 'n' {
					optional := c.Bool()
					r.OptionalOldSelf = &optional
				}
			}
		})
		all = append(all, r)
	})
	return all
}

// IsOldSelfOptional reports whether the rule is evaluated if there is no old value.
func (r Rule) IsOldSelfOptional() bool { return r.OptionalOldSelf != nil && *r.OptionalOldSelf }
