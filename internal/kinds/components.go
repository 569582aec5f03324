package kinds

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/trellis-k8s/trellis/internal/object"
)

// componentLeases lists the Leases in kube-system that the processes of each component hold, in Kubernetes and in
// trellis-cluster.
var componentLeases = []struct {
	component string
	leases    []string
}{
	{"controller-manager", []string{"kube-controller-manager", "trellis-cluster-controllers"}},
	{"scheduler", []string{"kube-scheduler"}},
}

// components returns the ComponentStatus of the store, and a ComponentStatus for each component that has a Lease. A
// component is healthy if the holder of one of its Leases is healthy.
func (c Config) components(context.Context) []object.Tree {
	all := []object.Tree{c.storageStatus()}
	for _, of := range componentLeases {
		healthy, message := false, ""
		for _, name := range of.leases {
			if reason, exists := c.leaseProblem(name); exists && !healthy {
				healthy, message = reason == "", reason
			}
		}
		if healthy {
			message = "ok"
		}
		if message != "" {
			all = append(all, componentStatus(of.component, healthy, "message", message))
		}
	}
	return all
}

func (c Config) storageStatus() object.Tree {
	const name = "etcd-0" // upstream's name
	if c.StorageHealth != nil {
		if err := c.StorageHealth(); err != nil {
			return componentStatus(name, false, "error", err.Error())
		}
	}
	return componentStatus(name, true, "message", "ok")
}

// leaseProblem returns the reason why the holder of a Lease is unhealthy, or "" for a healthy holder. exists is false
// if there is no such Lease.
func (c Config) leaseProblem(name string) (reason string, exists bool) {
	rec := c.Head().Get("/registry/leases/kube-system/" + name)
	if rec == nil {
		return "", false
	}
	var lease coordinationv1.Lease
	if err := json.Unmarshal(rec.Value, &lease); err != nil {
		return fmt.Sprintf("Lease kube-system/%s: %v", name, err), true
	}
	spec := &lease.Spec
	if spec.HolderIdentity == nil || *spec.HolderIdentity == "" {
		return fmt.Sprintf("Lease kube-system/%s has no holder", name), true
	}
	if spec.RenewTime == nil || spec.LeaseDurationSeconds == nil {
		return fmt.Sprintf("Lease kube-system/%s has no renewTime or leaseDurationSeconds", name), true
	}
	if end := spec.RenewTime.Add(time.Duration(*spec.LeaseDurationSeconds) * time.Second); end.Before(c.Now()) {
		return fmt.Sprintf("Lease kube-system/%s of %s expired at %s", name, *spec.HolderIdentity,
			end.UTC().Format(time.RFC3339)), true
	}
	return "", true
}

// componentStatus returns a ComponentStatus. The parameter field is "message" or "error", the field of its condition
// in which text is stored.
func componentStatus(name string, healthy bool, field, text string) object.Tree {
	status := "False"
	if healthy {
		status = "True"
	}
	return object.Tree{
		"apiVersion": "v1", "kind": "ComponentStatus", "metadata": object.Tree{"name": name},
		"conditions": []any{object.Tree{"type": "Healthy", "status": status, field: text}},
	}
}
