package kinds

import (
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/kubernetes/pkg/registry/apps/controllerrevision"
	"k8s.io/kubernetes/pkg/registry/apps/daemonset"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	"k8s.io/kubernetes/pkg/registry/apps/replicaset"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"
	"k8s.io/kubernetes/pkg/registry/autoscaling/horizontalpodautoscaler"
	"k8s.io/kubernetes/pkg/registry/batch/cronjob"
	"k8s.io/kubernetes/pkg/registry/batch/job"
	"k8s.io/kubernetes/pkg/registry/policy/poddisruptionbudget"
	"k8s.io/kubernetes/pkg/registry/scheduling/priorityclass"

	"github.com/trellis-k8s/trellis/internal/kinds/define"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// workloads returns the kinds that run Pods, and those that configure scaling, disruption and priority of Pods.
func workloads() []define.Entry {
	apps, batch := versions{appsv1.SchemeGroupVersion}, versions{batchv1.SchemeGroupVersion}
	return []define.Entry{
		{Kind: "ControllerRevision", Plural: "controllerrevisions", Versions: apps, Main: controllerrevision.Strategy},
		{Kind: "DaemonSet", Plural: "daemonsets", Versions: apps, Short: "ds", Categories: "all",
			Main: daemonset.Strategy, Status: daemonset.StatusStrategy,
			Behavior: resource.Behavior{HiddenAnnotation: appsv1.DeprecatedTemplateGeneration}},
		{Kind: "Deployment", Plural: "deployments", Versions: apps, Short: "deploy", Categories: "all",
			Main: deployment.Strategy, Status: deployment.StatusStrategy, Scale: replicasScale(formatLabelSelector)},
		{Kind: "ReplicaSet", Plural: "replicasets", Versions: apps, Short: "rs", Categories: "all",
			Main: replicaset.Strategy, Status: replicaset.StatusStrategy, Scale: replicasScale(formatLabelSelector)},
		{Kind: "StatefulSet", Plural: "statefulsets", Versions: apps, Short: "sts", Categories: "all",
			Main: statefulset.Strategy, Status: statefulset.StatusStrategy, Scale: replicasScale(formatLabelSelector)},
		{Kind: "HorizontalPodAutoscaler", Plural: "horizontalpodautoscalers",
			Versions: versions{autoscalingv2.SchemeGroupVersion, autoscalingv1.SchemeGroupVersion}, Short: "hpa",
			Categories: "all", Main: horizontalpodautoscaler.Strategy, Status: horizontalpodautoscaler.StatusStrategy},
		{Kind: "CronJob", Plural: "cronjobs", Versions: batch, Short: "cj", Categories: "all", Main: cronjob.Strategy,
			Status: cronjob.StatusStrategy},
		{Kind: "Job", Plural: "jobs", Versions: batch, Categories: "all", Main: job.Strategy,
			Status: job.StatusStrategy, Fields: []string{"status.successful=status.succeeded:0"},
			Behavior: resource.Behavior{OrphanWarning: orphanedPods}},
		{Kind: "PodDisruptionBudget", Plural: "poddisruptionbudgets", Versions: versions{policyv1.SchemeGroupVersion},
			Short: "pdb", Main: poddisruptionbudget.Strategy, Status: poddisruptionbudget.StatusStrategy},
		{Kind: "PriorityClass", Plural: "priorityclasses", Versions: versions{schedulingv1.SchemeGroupVersion},
			Short: "pc", Main: priorityclass.Strategy},
	}
}

const orphanedPods = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background " +
	"to remove them or set propagationPolicy=Orphan to suppress this warning"
