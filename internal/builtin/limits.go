package builtin

import (
	"strings"

	"github.com/trellis-k8s/trellis/internal/resource"
)

const (
	// maxItems limits what upstream's validation compares each with each other. With 16,000 items that takes a minute, and nothing
	// can interrupt it.
	maxItems = 1000
	// maxRequirements limits each selector of an access review, which every authenticated user may send.
	maxRequirements = 100
)

// limits returns the limits of a kind.
func limits(kind string) []resource.Limit {
	switch kind {
	case "LocalSubjectAccessReview", "SelfSubjectAccessReview", "SubjectAccessReview":
		const attributes = "spec.resourceAttributes."
		return []resource.Limit{
			resource.NewLimit(maxRequirements, attributes+"fieldSelector.requirements", attributes+"fieldSelector.rawSelector"),
			resource.NewLimit(maxRequirements, attributes+"labelSelector.requirements", attributes+"labelSelector.rawSelector"),
		}
	case "CustomResourceDefinition":
		return []resource.Limit{resource.NewLimit(maxItems, "spec.versions")}
	case "StorageClass":
		return []resource.Limit{resource.NewLimit(maxItems, "allowedTopologies")}
	case "Pod":
		return podLimits("spec.")
	case "PodTemplate":
		return podLimits("template.spec.")
	case "CronJob":
		return podLimits("spec.jobTemplate.spec.template.spec.")
	case "StatefulSet":
		return append(podLimits("spec.template.spec."), resource.NewLimit(maxItems, "spec.volumeClaimTemplates"))
	case "DaemonSet", "Deployment", "Job", "ReplicaSet", "ReplicationController":
		return podLimits("spec.template.spec.")
	}
	return nil
}

// podLimits returns the limits of a PodSpec, whose path ends with a dot.
func podLimits(path string) (all []resource.Limit) {
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
		all = append(all, resource.NewLimit(maxItems, paths...))
	}
	return all
}
