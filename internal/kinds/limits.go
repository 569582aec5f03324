package kinds

import (
	"strings"

	"github.com/trellis-k8s/trellis/internal/resource"
)

const (
	// maxItems is the maximum length of a list in which upstream's validation compares each pair of items. For 16,000
	// items, this validation takes a minute and cannot be interrupted.
	maxItems = 1000
	// maxUnique is the maximum length of a list in which upstream's declarative validation compares each pair of
	// items. The time for equal items is cubic. It is a tenth of a second for 1,000 items, and five minutes for
	// 16,000.
	maxUnique = 500
	// maxRequirements is the maximum number of requirements in a selector of an access review. Every authenticated
	// user may send access reviews.
	maxRequirements = 100
)

// limits returns the item limits of a kind.
func limits(kind string) []resource.ItemLimit {
	switch kind {
	case "LocalSubjectAccessReview", "SelfSubjectAccessReview", "SubjectAccessReview":
		const attributes = "spec.resourceAttributes."
		return []resource.ItemLimit{
			resource.NewItemLimit(maxRequirements, attributes+"fieldSelector.requirements",
				attributes+"fieldSelector.rawSelector"),
			resource.NewItemLimit(maxRequirements, attributes+"labelSelector.requirements",
				attributes+"labelSelector.rawSelector"),
		}
	case "CustomResourceDefinition":
		return sameLimit(maxItems, "spec.versions", "spec.names.shortNames", "spec.names.categories")
	case "DeviceTaintRule", "PodCertificateRequest", "PodDisruptionBudget", "StorageVersionMigration",
		"ValidatingAdmissionPolicy":
		return sameLimit(maxUnique, "status.conditions")
	case "ResourceClaim":
		return sameLimit(maxUnique, "status.devices", "status.devices.*.conditions",
			"status.allocation.devices.results.*.skipNodeOperations")
	case "ResourceSlice":
		return sameLimit(maxUnique, "spec.skipNodeOperations")
	case "Service":
		return sameLimit(maxItems, "spec.externalIPs")
	case "CSINode":
		return sameLimit(maxItems, "spec.drivers")
	case "StorageClass":
		return sameLimit(maxItems, "allowedTopologies")
	case "Pod":
		const claims = "status.nodeAllocatableResourceClaimStatuses"
		return append(podLimits("spec."), sameLimit(maxUnique, "status.volumeHealth", claims, claims+".*.containers",
			claims+".*.mapping", claims+".*.overhead")...)
	case "PodTemplate":
		return podLimits("template.spec.")
	case "CronJob":
		return podLimits("spec.jobTemplate.spec.template.spec.")
	case "StatefulSet":
		return append(podLimits("spec.template.spec."), resource.NewItemLimit(maxItems, "spec.volumeClaimTemplates"))
	case "DaemonSet", "Deployment", "Job", "ReplicaSet", "ReplicationController":
		return podLimits("spec.template.spec.")
	}
	return nil
}

// sameLimit returns a limit of n items for each path.
func sameLimit(n int, paths ...string) (all []resource.ItemLimit) {
	for _, path := range paths {
		all = append(all, resource.NewItemLimit(n, path))
	}
	return all
}

// podLimits returns the item limits of a PodSpec. The parameter path is the path of the PodSpec, with a dot at the
// end.
func podLimits(path string) (all []resource.ItemLimit) {
	for _, group := range []string{ // each string holds the paths of lists that share one limit
		"tolerations",
		"containers initContainers ephemeralContainers",
		"containers.*.ports initContainers.*.ports ephemeralContainers.*.ports",
		"volumes",
		"volumes.*.configMap.items volumes.*.secret.items volumes.*.downwardAPI.items volumes.*.projected.sources " +
			"volumes.*.projected.sources.*.configMap.items volumes.*.projected.sources.*.secret.items " +
			"volumes.*.projected.sources.*.downwardAPI.items",
		"topologySpreadConstraints",
		"readinessGates", // for each gate, the Table of a Pod searches all conditions
	} {
		paths := strings.Fields(group)
		for i := range paths {
			paths[i] = path + paths[i]
		}
		all = append(all, resource.NewItemLimit(maxItems, paths...))
	}
	return all
}
