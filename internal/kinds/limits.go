package kinds

import (
	"strings"

	"github.com/trellis-k8s/trellis/internal/resource"
)

const (
	// maxItems limits what upstream's validation compares each with each other. With 16,000 items that takes a minute, and nothing
	// can interrupt it.
	maxItems = 1000
	// maxUnique limits lists of which upstream's declarative validation compares each item with each other. Equal items take time that
	// grows with the third power of their number: 1,000 take a tenth of a second, 16,000 five minutes.
	maxUnique = 500
	// maxRequirements limits each selector of an access review, which every authenticated user may send.
	maxRequirements = 100
)

// limits returns the limits of a kind.
func limits(kind string) []resource.ItemLimit {
	switch kind {
	case "LocalSubjectAccessReview", "SelfSubjectAccessReview", "SubjectAccessReview":
		const attributes = "spec.resourceAttributes."
		return []resource.ItemLimit{
			resource.NewItemLimit(maxRequirements, attributes+"fieldSelector.requirements", attributes+"fieldSelector.rawSelector"),
			resource.NewItemLimit(maxRequirements, attributes+"labelSelector.requirements", attributes+"labelSelector.rawSelector"),
		}
	case "CustomResourceDefinition":
		return sameLimit(maxItems, "spec.versions", "spec.names.shortNames", "spec.names.categories")
	case "DeviceTaintRule", "PodCertificateRequest", "PodDisruptionBudget", "StorageVersionMigration", "ValidatingAdmissionPolicy":
		return sameLimit(maxUnique, "status.conditions")
	case "ResourceClaim":
		return sameLimit(maxUnique, "status.devices", "status.devices.*.conditions", "status.allocation.devices.results.*.skipNodeOperations")
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
		return append(podLimits("spec."), sameLimit(maxUnique, "status.volumeHealth", claims, claims+".*.containers", claims+".*.mapping", claims+".*.overhead")...)
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

// sameLimit returns the same limit for each path.
func sameLimit(most int, paths ...string) (all []resource.ItemLimit) {
	for _, path := range paths {
		all = append(all, resource.NewItemLimit(most, path))
	}
	return all
}

// podLimits returns the limits of a PodSpec, whose path ends with a dot.
func podLimits(path string) (all []resource.ItemLimit) {
	for _, together := range []string{
		"tolerations",
		"containers initContainers ephemeralContainers",
		"containers.*.ports initContainers.*.ports ephemeralContainers.*.ports",
		"volumes",
		"volumes.*.configMap.items volumes.*.secret.items volumes.*.downwardAPI.items volumes.*.projected.sources " +
			"volumes.*.projected.sources.*.configMap.items volumes.*.projected.sources.*.secret.items volumes.*.projected.sources.*.downwardAPI.items",
		"topologySpreadConstraints",
		"readinessGates", // a Table of Pods looks for the condition of each
	} {
		paths := strings.Fields(together)
		for i := range paths {
			paths[i] = path + paths[i]
		}
		all = append(all, resource.NewItemLimit(maxItems, paths...))
	}
	return all
}
