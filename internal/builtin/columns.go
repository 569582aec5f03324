package builtin

import (
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// The columns are those of kubectl get today; their descriptions are those of
// the fields.

func nameColumn() resource.Column {
	return resource.Column{Name: "Name", Type: "string", Format: "name", Description: metav1.ObjectMeta{}.SwaggerDoc()["name"], Path: []string{"metadata", "name"}}
}

func ageColumn() resource.Column {
	return resource.Column{Name: "Age", Type: "string", Age: true, Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"], Path: []string{"metadata", "creationTimestamp"}}
}

// pathColumn shows a string field, empty where it is not set.
func pathColumn(name, description string, path ...string) resource.Column {
	return cellColumn(name, description, func(t object.Tree) any { return text(t, path...) })
}

func cellColumn(name, description string, cell func(object.Tree) any) resource.Column {
	return resource.Column{Name: name, Type: "string", Description: description, Cell: cell}
}

// wide columns are shown by kubectl get -o wide alone.
func wide(c resource.Column) resource.Column {
	c.Priority = 1
	return c
}

func age(c resource.Column) resource.Column {
	c.Age = true
	return c
}

func defaultColumns() []resource.Column {
	return []resource.Column{nameColumn(), ageColumn()}
}

func namespaceColumns() []resource.Column {
	return []resource.Column{nameColumn(), pathColumn("Status", "The status of the namespace", "status", "phase"), ageColumn()}
}

func configMapColumns() []resource.Column {
	size := func(t object.Tree) any { return int64(len(tree(t, "data")) + len(tree(t, "binaryData"))) }
	return []resource.Column{nameColumn(), cellColumn("Data", corev1.ConfigMap{}.SwaggerDoc()["data"], size), ageColumn()}
}

func secretColumns() []resource.Column {
	doc := corev1.Secret{}.SwaggerDoc()
	size := func(t object.Tree) any { return int64(len(tree(t, "data"))) }
	return []resource.Column{nameColumn(), pathColumn("Type", doc["type"], "type"), cellColumn("Data", doc["data"], size), ageColumn()}
}

func leaseColumns() []resource.Column {
	return []resource.Column{nameColumn(), pathColumn("Holder", coordinationv1.LeaseSpec{}.SwaggerDoc()["holderIdentity"], "spec", "holderIdentity"), ageColumn()}
}

func eventColumns() []resource.Column {
	doc := corev1.Event{}.SwaggerDoc()
	name := nameColumn()
	name.Priority = 1
	return []resource.Column{
		age(cellColumn("Last Seen", doc["lastTimestamp"], lastSeen)),
		pathColumn("Type", doc["type"], "type"),
		pathColumn("Reason", doc["reason"], "reason"),
		cellColumn("Object", doc["involvedObject"], eventTarget),
		wide(pathColumn("Subobject", corev1.ObjectReference{}.SwaggerDoc()["fieldPath"], "involvedObject", "fieldPath")),
		wide(cellColumn("Source", doc["source"], eventSource)),
		cellColumn("Message", doc["message"], func(t object.Tree) any { return strings.TrimSpace(text(t, "message")) }),
		wide(age(cellColumn("First Seen", doc["firstTimestamp"], func(t object.Tree) any { return firstSeen(t) }))),
		wide(cellColumn("Count", doc["count"], eventCount)),
		name,
	}
}

// newEventColumns are the same columns for an Event of events.k8s.io.
func newEventColumns() []resource.Column {
	columns := eventColumns()
	for i, c := range columns {
		if c.Cell != nil {
			columns[i].Cell = func(t object.Tree) any { return c.Cell(rename(t, toCoreNames)) }
		}
	}
	return columns
}

func firstSeen(t object.Tree) string {
	return orElse(text(t, "firstTimestamp"), text(t, "eventTime"))
}

func lastSeen(t object.Tree) any {
	if series := tree(t, "series"); series != nil {
		return text(series, "lastObservedTime")
	}
	return orElse(text(t, "lastTimestamp"), firstSeen(t))
}

// eventCount is 1 for an event outside a series, for the newer API counts none.
func eventCount(t object.Tree) any {
	if series := tree(t, "series"); series != nil {
		return number(series, "count")
	}
	if n := number(t, "count"); n != 0 {
		return n
	}
	return int64(1)
}

func eventTarget(t object.Tree) any {
	target := strings.ToLower(text(t, "involvedObject", "kind"))
	if name := text(t, "involvedObject", "name"); name != "" {
		target += "/" + name
	}
	return target
}

func eventSource(t object.Tree) any {
	component := orElse(text(t, "source", "component"), text(t, "reportingComponent"))
	instance := orElse(text(t, "source", "host"), text(t, "reportingInstance"))
	if instance == "" {
		return component
	}
	return component + ", " + instance
}
