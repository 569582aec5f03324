package builtin

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

// wholeStrategy has the optional methods of upstream's strategy of ResourceQuotas as well.
type wholeStrategy interface {
	strategy
	rest.DeclarativeValidationStrategy
	rest.ResetFieldsStrategy
}

// quotaStrategy is upstream's strategy of ResourceQuotas with a warning for counts that leave out the group of their resource.
type quotaStrategy struct {
	wholeStrategy
	groups func(context.Context, string) []string // of the served resources with a plural name
}

func (c Config) quotaStrategy() strategy { return quotaStrategy{resourcequota.Strategy, c.groupsOf} }

// WarningsOnCreate implements rest.RESTCreateStrategy.
func (s quotaStrategy) WarningsOnCreate(ctx context.Context, obj runtime.Object) []string {
	return append(s.wholeStrategy.WarningsOnCreate(ctx, obj), s.countsWithoutGroup(ctx, obj)...)
}

// WarningsOnUpdate implements rest.RESTUpdateStrategy.
func (s quotaStrategy) WarningsOnUpdate(ctx context.Context, obj, old runtime.Object) []string {
	return append(s.wholeStrategy.WarningsOnUpdate(ctx, obj, old), s.countsWithoutGroup(ctx, obj)...)
}

// countsWithoutGroup returns a warning for each limit such as count/jobs, which limits nothing: a name without a group is one of the core
// group (kubernetes#97765).
func (s quotaStrategy) countsWithoutGroup(ctx context.Context, obj runtime.Object) (warnings []string) {
	for limit := range obj.(*api.ResourceQuota).Spec.Hard {
		name, ok := strings.CutPrefix(string(limit), "count/")
		if !ok || strings.Contains(name, ".") {
			continue
		}
		groups := s.groups(ctx, name)
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
		warnings = append(warnings, fmt.Sprintf("spec.hard[%s]: limits nothing, because the core group has no resource %q; use %s", limit, name, strings.Join(use, " or ")))
	}
	slices.Sort(warnings)
	return warnings
}

// groupsOf returns the names of the groups that have a resource with a plural name.
func (c Config) groupsOf(ctx context.Context, plural string) (groups []string) {
	if c.Catalog == nil {
		return nil
	}
	catalog, err := c.Catalog(ctx)
	if err != nil {
		return nil
	}
	for d := range catalog.Definitions() {
		if d.Names.Plural == plural {
			groups = append(groups, d.Group)
		}
	}
	slices.Sort(groups)
	return slices.Compact(groups)
}
