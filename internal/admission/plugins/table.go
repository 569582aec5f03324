package plugins

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	"k8s.io/kubernetes/plugin/pkg/admission/admit"
	"k8s.io/kubernetes/plugin/pkg/admission/alwayspullimages"
	"k8s.io/kubernetes/plugin/pkg/admission/antiaffinity"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/approval"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/ctbattest"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/signing"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/subjectrestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/defaulttolerationseconds"
	"k8s.io/kubernetes/plugin/pkg/admission/deny"
	"k8s.io/kubernetes/plugin/pkg/admission/eventratelimit"
	"k8s.io/kubernetes/plugin/pkg/admission/extendedresourcetoleration"
	"k8s.io/kubernetes/plugin/pkg/admission/gc"
	"k8s.io/kubernetes/plugin/pkg/admission/limitranger"
	"k8s.io/kubernetes/plugin/pkg/admission/namespace/exists"
	"k8s.io/kubernetes/plugin/pkg/admission/network/defaultingressclass"
	"k8s.io/kubernetes/plugin/pkg/admission/network/denyserviceexternalips"
	"k8s.io/kubernetes/plugin/pkg/admission/nodedeclaredfeatures"
	"k8s.io/kubernetes/plugin/pkg/admission/noderestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/nodetaint"
	"k8s.io/kubernetes/plugin/pkg/admission/podnodeselector"
	"k8s.io/kubernetes/plugin/pkg/admission/podresize"
	"k8s.io/kubernetes/plugin/pkg/admission/podtolerationrestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/podtopologylabels"
	"k8s.io/kubernetes/plugin/pkg/admission/priority"
	"k8s.io/kubernetes/plugin/pkg/admission/runtimeclass"
	"k8s.io/kubernetes/plugin/pkg/admission/scheduling/podgroupprotection"
	"k8s.io/kubernetes/plugin/pkg/admission/security/podsecurity"
	"k8s.io/kubernetes/plugin/pkg/admission/serviceaccount"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/persistentvolume/resize"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/storageclass/setdefault"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/storageobjectinuseprotection"
)

// entry describes an available plugin.
type entry struct {
	name        string
	register    func(*upstream.Plugins) // nil for the plugins in Config.ServerPlugins
	onByDefault bool
	resources   []schema.GroupResource // the resources that the plugin handles; nil means all
}

var (
	pods      = []schema.GroupResource{{Resource: "pods"}}
	claims    = []schema.GroupResource{{Resource: "persistentvolumeclaims"}}
	requests  = groupResources("certificates.k8s.io", "certificatesigningrequests")
	workloads = append(groupResources(corev1.GroupName, "namespaces", "pods", "replicationcontrollers", "podtemplates"),
		append(groupResources("apps", "replicasets", "deployments", "statefulsets", "daemonsets"),
			groupResources("batch", "jobs", "cronjobs")...)...)
)

// groupResources returns the GroupResources of the given resources of a group.
func groupResources(group string, resources ...string) (all []schema.GroupResource) {
	for _, r := range resources {
		all = append(all, schema.GroupResource{Group: group, Resource: r})
	}
	return all
}

// table lists the plugins in the order of kube-apiserver.
var table = []entry{
	{"AlwaysAdmit", admit.Register, false, nil},
	{"NamespaceExists", exists.Register, false, nil},
	{antiaffinity.PluginName, antiaffinity.Register, false, pods},
	{limitranger.PluginName, limitranger.Register, true,
		groupResources(corev1.GroupName, "pods", "persistentvolumeclaims")},
	{serviceaccount.PluginName, serviceaccount.Register, true, pods},
	{NodeRestriction, noderestriction.Register, false, nil}, // enabled with the Node authorizer
	{nodetaint.PluginName, nodetaint.Register, true, groupResources(corev1.GroupName, "nodes")},
	{alwayspullimages.PluginName, alwayspullimages.Register, false, pods},
	{podsecurity.PluginName, podsecurity.Register, true, workloads},
	{podnodeselector.PluginName, podnodeselector.Register, false, pods},
	{priority.PluginName, priority.Register, true, append(groupResources("scheduling.k8s.io", "priorityclasses",
		"podgroups", "compositepodgroups"), pods...)},
	{defaulttolerationseconds.PluginName, defaulttolerationseconds.Register, true, pods},
	{podtolerationrestriction.PluginName, podtolerationrestriction.Register, false, pods},
	{eventratelimit.PluginName, eventratelimit.Register, false,
		append(groupResources("events.k8s.io", "events"), groupResources(corev1.GroupName, "events")...)},
	{extendedresourcetoleration.PluginName, extendedresourcetoleration.Register, false, pods},
	{setdefault.PluginName, setdefault.Register, true, claims},
	{storageobjectinuseprotection.PluginName, storageobjectinuseprotection.Register, true,
		append(groupResources(corev1.GroupName, "persistentvolumes", "persistentvolumeclaims"),
			groupResources("storage.k8s.io", "volumeattributesclasses")...)},
	{podgroupprotection.PluginName, podgroupprotection.Register, true,
		groupResources("scheduling.k8s.io", "podgroups")},
	{gc.PluginName, gc.Register, false, nil},
	{resize.PluginName, resize.Register, true, claims},
	{runtimeclass.PluginName, runtimeclass.Register, true, pods},
	{approval.PluginName, approval.Register, true, requests},
	{signing.PluginName, signing.Register, true, requests},
	{ctbattest.PluginName, ctbattest.Register, true, groupResources("certificates.k8s.io", "clustertrustbundles")},
	{subjectrestriction.PluginName, subjectrestriction.Register, true, requests},
	{defaultingressclass.PluginName, defaultingressclass.Register, true,
		groupResources("networking.k8s.io", "ingresses")},
	{denyserviceexternalips.PluginName, denyserviceexternalips.Register, true,
		groupResources(corev1.GroupName, "services")},
	{podtopologylabels.PluginName, podtopologylabels.Register, true, pods},
	{nodedeclaredfeatures.PluginName, nodedeclaredfeatures.Register, true,
		append(groupResources("resource.k8s.io", "resourceslices"), pods...)},
	{podresize.PluginName, podresize.Register, true, pods},
	{"MutatingAdmissionPolicy", nil, true, nil},
	{"MutatingAdmissionWebhook", nil, true, nil},
	{"ValidatingAdmissionPolicy", nil, true, nil},
	{"ValidatingAdmissionWebhook", nil, true, nil},
	{resourcequota.PluginName, resourcequota.Register, true, nil},
	{deny.PluginName, deny.Register, false, nil},
}
