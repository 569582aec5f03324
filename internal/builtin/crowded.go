package builtin

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/storage"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// most is how many items an object may have, wherever they are in it, of what upstream compares each with each other. With 16,000 of
// them that takes a minute, and nothing can stop it.
const most = 1000

// crowded refuses an object with more of them.
func crowded(obj resource.Internal) (errs field.ErrorList) {
	check := func(path *field.Path, n int) {
		if n > most {
			errs = append(errs, field.TooMany(path, n, most))
		}
	}
	switch o := obj.(type) {
	case *storage.StorageClass:
		check(field.NewPath("allowedTopologies"), len(o.AllowedTopologies))
	case *apps.StatefulSet:
		check(field.NewPath("spec", "volumeClaimTemplates"), len(o.Spec.VolumeClaimTemplates))
	}
	spec := podSpec(obj)
	if spec == nil {
		return errs
	}
	containers, ports, paths := 0, 0, 0
	for _, list := range [][]core.Container{spec.InitContainers, spec.Containers} {
		containers += len(list)
		for i := range list {
			ports += len(list[i].Ports)
		}
	}
	for i := range spec.Volumes {
		paths += pathsIn(&spec.Volumes[i].VolumeSource)
	}
	at := field.NewPath("spec")
	check(at.Child("tolerations"), len(spec.Tolerations))
	check(at.Child("containers"), containers+len(spec.EphemeralContainers))
	check(at.Child("containers", "ports"), ports)
	check(at.Child("volumes"), len(spec.Volumes))
	check(at.Child("volumes", "items"), paths)
	check(at.Child("topologySpreadConstraints"), len(spec.TopologySpreadConstraints))
	return errs
}

// pathsIn is how many files a volume puts in places of their own.
func pathsIn(v *core.VolumeSource) (n int) {
	switch {
	case v.ConfigMap != nil:
		return len(v.ConfigMap.Items)
	case v.Secret != nil:
		return len(v.Secret.Items)
	case v.DownwardAPI != nil:
		return len(v.DownwardAPI.Items)
	case v.Projected == nil:
		return 0
	}
	n = len(v.Projected.Sources)
	for _, s := range v.Projected.Sources {
		if s.ConfigMap != nil {
			n += len(s.ConfigMap.Items)
		}
		if s.Secret != nil {
			n += len(s.Secret.Items)
		}
		if s.DownwardAPI != nil {
			n += len(s.DownwardAPI.Items)
		}
	}
	return n
}

// podSpec is that of a Pod, or of the Pods that an object makes; nil of any other object.
func podSpec(obj resource.Internal) *core.PodSpec {
	switch o := obj.(type) {
	case *core.Pod:
		return &o.Spec
	case *core.PodTemplate:
		return &o.Template.Spec
	case *core.ReplicationController:
		if o.Spec.Template != nil {
			return &o.Spec.Template.Spec
		}
	case *apps.ReplicaSet:
		return &o.Spec.Template.Spec
	case *apps.Deployment:
		return &o.Spec.Template.Spec
	case *apps.DaemonSet:
		return &o.Spec.Template.Spec
	case *apps.StatefulSet:
		return &o.Spec.Template.Spec
	case *batch.Job:
		return &o.Spec.Template.Spec
	case *batch.CronJob:
		return &o.Spec.JobTemplate.Spec.Template.Spec
	}
	return nil
}
