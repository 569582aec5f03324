package kinds

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/resourcequota"
)

// upstreamQuotaStrategy includes the optional methods of upstream's strategy of ResourceQuotas.
type upstreamQuotaStrategy interface {
	strategy
	rest.DeclarativeValidationStrategy
	rest.ResetFieldsStrategy
}

// quotaStrategy is upstream's strategy of ResourceQuotas, with an additional warning for counts without the group of
// their resource.
type quotaStrategy struct {
	upstreamQuotaStrategy
	groups func(context.Context) map[string][]string // of all resources, by plural name
}

func (c Config) quotaStrategy() strategy { return quotaStrategy{resourcequota.Strategy, c.groups} }

// WarningsOnCreate implements rest.RESTCreateStrategy.
func (s quotaStrategy) WarningsOnCreate(ctx context.Context, obj runtime.Object) []string {
	return append(s.upstreamQuotaStrategy.WarningsOnCreate(ctx, obj), s.countsWithoutGroup(ctx, obj)...)
}

// WarningsOnUpdate implements rest.RESTUpdateStrategy.
func (s quotaStrategy) WarningsOnUpdate(ctx context.Context, obj, old runtime.Object) []string {
	return append(s.upstreamQuotaStrategy.WarningsOnUpdate(ctx, obj, old), s.countsWithoutGroup(ctx, obj)...)
}

// countsWithoutGroup returns a warning for each limit such as count/jobs. It has no effect, because a name without a
// group refers to the core group (kubernetes#97765).
func (s quotaStrategy) countsWithoutGroup(ctx context.Context, obj runtime.Object) (warnings []string) {
	var names []string
	for limit := range obj.(*api.ResourceQuota).Spec.Hard {
		if name, ok := strings.CutPrefix(string(limit), "count/"); ok && !strings.Contains(name, ".") {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	served := s.groups(ctx)
	for _, name := range names {
		groups := served[name]
		if slices.Contains(groups, "") {
			continue
		}
		if len(groups) == 0 {
			groups = []string{"<group>"}
		}
		var use []string
		for _, g := range groups {
			use = append(use, "count/"+name+"."+g)
		}
		warnings = append(warnings, fmt.Sprintf(
			"spec.hard[count/%s]: limits nothing, because the core group has no resource %q; use %s",
			name, name, strings.Join(use, " or ")))
	}
	return warnings
}

// groups returns the sorted names of the groups of all resources, by plural name.
func (c Config) groups(ctx context.Context) map[string][]string {
	all := map[string][]string{}
	if c.Catalog == nil {
		return all
	}
	catalog, err := c.Catalog(ctx)
	if err != nil {
		return all // a write succeeds without the warning
	}
	for d := range catalog.Definitions() { // sorted by group
		if names := all[d.Names.Plural]; !slices.Contains(names, d.Group) {
			all[d.Names.Plural] = append(names, d.Group)
		}
	}
	return all
}
