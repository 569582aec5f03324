package crdvalidation

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apicel "k8s.io/apiserver/pkg/cel"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
)

// Limits of the estimated costs of the rules of a CRD (validation.go of apiextensions).
const (
	MaxRuleCost = 10_000_000  // one expression, for all values in an object
	MaxCRDCost  = 100_000_000 // all expressions of a schema
)

const rulesField = "x-kubernetes-validations"

// rules checks the fields of x-kubernetes-validations without compiling expressions.
func (w *walker) rules(n *schema.Node, path *field.Path) {
	const noBreaks = "must not contain line breaks"
	for i, r := range n.Rules.All() {
		at := path.Child(rulesField).Index(i)
		rule, message := strings.TrimSpace(r.Rule), strings.TrimSpace(r.Message)
		switch {
		case rule == "":
			w.add(field.Required(at.Child("rule"), "rule is not specified"))
		case r.Message != "" && message == "":
			w.add(field.Invalid(at.Child("message"), r.Message, "must be non-empty if specified"))
		case hasBreak(message):
			w.add(field.Invalid(at.Child("message"), r.Message, noBreaks))
		case hasBreak(rule) && message == "":
			w.add(field.Required(at.Child("message"), "message must be specified if rule contains line breaks"))
		}
		if r.MessageExpression != "" && strings.TrimSpace(r.MessageExpression) == "" {
			w.add(field.Required(at.Child("messageExpression"), "messageExpression must be non-empty if specified"))
		}
		reasons := []string{"FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"}
		if r.Reason != nil && !slices.Contains(reasons, *r.Reason) {
			w.add(field.NotSupported(at.Child("reason"), apiextensions.FieldValueErrorReason(*r.Reason), reasons))
		}
		if r.FieldPath == "" {
			continue
		}
		if strings.TrimSpace(r.FieldPath) == "" {
			w.add(field.Invalid(at.Child("fieldPath"), r.FieldPath, "must be non-empty if specified"))
		}
		if hasBreak(r.FieldPath) {
			w.add(field.Invalid(at.Child("fieldPath"), r.FieldPath, noBreaks))
		}
		if _, err := resolve(r.FieldPath, n, true); err != nil && !n.Has(schema.Unsupported) {
			w.add(field.Invalid(at.Child("fieldPath"), r.FieldPath, "must be a valid path"))
		}
	}
}

func hasBreak(s string) bool { return strings.ContainsAny(s, "\n\r") }

// compiledRules compiles the rules of n. n and the schemas below it must be valid.
func (w *walker) compiledRules(n *schema.Node, path *field.Path, at schemaContext) {
	checked, err := w.checker.Check(at.rules)
	if err != nil {
		w.ruleErrs = append(w.ruleErrs, field.InternalError(path.Child(rulesField), err))
		return
	}
	for i, c := range checked {
		r, at, uncorrelatable := upstreamRule(c.Rule), path.Child(rulesField).Index(i), at.uncorrelatable
		w.cost(at.Child("rule"), "estimated rule cost", c.Cost)
		if c.Err != nil && c.Err.Type == apicel.ErrorTypeRequired {
			w.ruleErrs = append(w.ruleErrs, field.Required(at.Child("rule"), c.Err.Detail))
		} else if c.Err != nil {
			w.ruleErrs = append(w.ruleErrs, field.Invalid(at.Child("rule"), r, c.Err.Detail))
		}
		if c.MessageErr != nil {
			w.ruleErrs = append(w.ruleErrs, field.Invalid(at.Child("messageExpression"), r, c.MessageErr.Detail))
		} else if c.HasMessage {
			w.cost(at.Child("messageExpression"), "estimated messageExpression cost", c.MessageCost)
		}
		switch {
		case c.UsesOldSelf && uncorrelatable != nil:
			w.ruleErrs = append(w.ruleErrs, field.Invalid(at.Child("rule"), r.Rule,
				fmt.Sprintf("oldSelf cannot be used on the uncorrelatable portion of the schema within %v",
					uncorrelatable)))
		case !c.UsesOldSelf && r.OptionalOldSelf != nil:
			w.ruleErrs = append(w.ruleErrs, field.Invalid(at.Child("optionalOldSelf"), *r.OptionalOldSelf,
				"may not be set if oldSelf is not used in rule"))
		}
	}
}

// cost checks the cost of an expression against its limit and adds it to the total.
func (w *walker) cost(path *field.Path, what string, cost uint64) {
	if cost > MaxRuleCost && !w.costly() {
		w.ruleErrs = append(w.ruleErrs, field.Forbidden(path, CostMessage(what, cost, MaxRuleCost)))
	}
	w.costs.add(path, cost)
}

// costs sums the costs of the expressions of a schema.
type costs struct {
	total uint64
	most  []ruleCost // the four most expensive expressions above 1% of the limit
}

type ruleCost struct {
	path *field.Path
	cost uint64
}

func (c *costs) add(path *field.Path, cost uint64) {
	if c.total += cost; c.total < cost {
		c.total = math.MaxUint64
	}
	if cost < MaxCRDCost/100 {
		return
	}
	c.most = append(c.most, ruleCost{path, cost})
	slices.SortStableFunc(c.most, func(a, b ruleCost) int { return cmp.Compare(b.cost, a.cost) })
	c.most = c.most[:min(len(c.most), 4)]
}

// exceeded returns errors if the total cost is above the limit: for the most expensive expressions and for the total.
func (c *costs) exceeded(path *field.Path) (errs field.ErrorList) {
	if c.total <= MaxCRDCost {
		return nil
	}
	for _, r := range c.most {
		errs = append(errs, field.Forbidden(r.path,
			"contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"))
	}
	return append(errs, field.Forbidden(path,
		CostMessage("x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema", c.total,
			MaxCRDCost)))
}

// CostMessage returns the error text for an estimated cost above the limit.
func CostMessage(what string, cost, limit uint64) string {
	times := float64(cost) / float64(limit)
	factor := fmt.Sprintf("%.1fx", times)
	switch {
	case times > 100:
		factor = "more than 100x"
	case times < 1.5:
		factor = fmt.Sprintf("%fx", times)
	}
	return what + " exceeds budget by factor of " + factor +
		" (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and " +
		"strings are declared)"
}

// expressions are the expressions of a stored CRD. They may use functions that new expressions may not.
type expressions struct{ rules, messages map[string]bool }

func (e expressions) has(expr string, isMessage bool) bool {
	if isMessage {
		return e.messages[expr]
	}
	return e.rules[expr]
}

// expressions returns the expressions of the CRD.
func (c CRD) expressions() expressions {
	e := expressions{map[string]bool{}, map[string]bool{}}
	c.any(func(n *schema.Node) bool {
		for _, r := range n.Rules.All() {
			e.rules[r.Rule] = true
			if r.MessageExpression != "" {
				e.messages[r.MessageExpression] = true
			}
		}
		return false
	})
	return e
}

// upstreamRule converts a rule to upstream's type, as errors print it.
func upstreamRule(r schema.Rule) apiextensions.ValidationRule {
	return apiextensions.ValidationRule{
		Rule: r.Rule, Message: r.Message, MessageExpression: r.MessageExpression, FieldPath: r.FieldPath,
		Reason: (*apiextensions.FieldValueErrorReason)(r.Reason), OptionalOldSelf: r.OptionalOldSelf,
	}
}
