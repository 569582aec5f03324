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

	"github.com/trellis-k8s/trellis/internal/resource"
)

// workloads returns the kinds that run Pods, and those that configure scaling, disruption and priority of Pods.
func workloads() []entry {
	apps, batch := versions{appsv1.SchemeGroupVersion}, versions{batchv1.SchemeGroupVersion}
	return []entry{
		{kind: "ControllerRevision", plural: "controllerrevisions", versions: apps, main: controllerrevision.Strategy},
		{kind: "DaemonSet", plural: "daemonsets", versions: apps, short: "ds", categories: "all",
			main: daemonset.Strategy, status: daemonset.StatusStrategy,
			behavior: resource.Behavior{HiddenAnnotation: appsv1.DeprecatedTemplateGeneration}},
		{kind: "Deployment", plural: "deployments", versions: apps, short: "deploy", categories: "all",
			main: deployment.Strategy, status: deployment.StatusStrategy, scale: replicasScale(formatLabelSelector)},
		{kind: "ReplicaSet", plural: "replicasets", versions: apps, short: "rs", categories: "all",
			main: replicaset.Strategy, status: replicaset.StatusStrategy, scale: replicasScale(formatLabelSelector)},
		{kind: "StatefulSet", plural: "statefulsets", versions: apps, short: "sts", categories: "all",
			main: statefulset.Strategy, status: statefulset.StatusStrategy, scale: replicasScale(formatLabelSelector)},
		{kind: "HorizontalPodAutoscaler", plural: "horizontalpodautoscalers",
			versions: versions{autoscalingv2.SchemeGroupVersion, autoscalingv1.SchemeGroupVersion}, short: "hpa",
			categories: "all", main: horizontalpodautoscaler.Strategy, status: horizontalpodautoscaler.StatusStrategy},
		{kind: "CronJob", plural: "cronjobs", versions: batch, short: "cj", categories: "all", main: cronjob.Strategy,
			status: cronjob.StatusStrategy},
		{kind: "Job", plural: "jobs", versions: batch, categories: "all", main: job.Strategy,
			status: job.StatusStrategy, fields: []string{"status.successful=status.succeeded:0"},
			behavior: resource.Behavior{OrphanWarning: orphanedPods}},
		{kind: "PodDisruptionBudget", plural: "poddisruptionbudgets", versions: versions{policyv1.SchemeGroupVersion},
			short: "pdb", main: poddisruptionbudget.Strategy, status: poddisruptionbudget.StatusStrategy},
		{kind: "PriorityClass", plural: "priorityclasses", versions: versions{schedulingv1.SchemeGroupVersion},
			short: "pc", main: priorityclass.Strategy},
	}
}

const orphanedPods = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background " +
	"to remove them or set propagationPolicy=Orphan to suppress this warning"
