package informer

import (
	"context"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// discover returns the kinds of a group, or of all groups, each at its preferred version. If only some groups failed,
// it returns an error, the kinds that it found, and the failed groups. After another error, found and broken are nil.
func discover(
	ctx context.Context, d discovery.DiscoveryInterface, group string,
) (found []Kind, broken map[string]bool, err error) {
	var lists []*metav1.APIResourceList
	if group == allGroups {
		lists, err = discovery.ServerPreferredResources(d)
	} else {
		lists, err = discoverGroup(ctx, d, group)
	}
	if failed, ok := discovery.GroupDiscoveryFailedErrorGroups(err); ok {
		broken = map[string]bool{}
		for gv := range failed {
			broken[gv.Group] = true
		}
	} else if err != nil {
		return nil, nil, err
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, nil, err
		}
		for _, r := range list.APIResources {
			if isWatchable(gv.Group, &r) {
				found = append(found, Kind{gv.WithResource(r.Name), r.Kind, r.Namespaced})
			}
		}
	}
	return found, broken, err
}

// discoverGroup returns a list of resources for each version of the group. A resource is only in the list of the first
// version that has it.
func discoverGroup(
	ctx context.Context, d discovery.DiscoveryInterface, group string,
) (lists []*metav1.APIResourceList, err error) {
	g := &metav1.APIGroup{}
	err = d.RESTClient().Get().AbsPath("/apis", group).Do(ctx).Into(g)
	if err != nil {
		return nil, IgnoreNotFound(err)
	}
	seen := map[string]bool{}
	for _, v := range g.Versions {
		list := &metav1.APIResourceList{}
		err := d.RESTClient().Get().AbsPath("/apis", group, v.Version).Do(ctx).Into(list)
		if err != nil {
			return nil, err
		}
		list.APIResources = slices.DeleteFunc(list.APIResources, func(r metav1.APIResource) bool {
			known := seen[r.Name]
			seen[r.Name] = true
			return known
		})
		list.GroupVersion = v.GroupVersion
		lists = append(lists, list)
	}
	return lists, nil
}

// isWatchable reports whether the controllers watch a resource. They watch neither subresources, nor resources that
// cannot be listed, watched and deleted. They do not watch Events, because there are many of them and they own no
// objects.
func isWatchable(group string, r *metav1.APIResource) bool {
	isEvent := r.Kind == "Event" && (group == "" || group == "events.k8s.io")
	return !isEvent && !strings.Contains(r.Name, "/") &&
		discovery.SupportsAllVerbs{Verbs: []string{"list", "watch", "delete"}}.Match(group, r)
}
