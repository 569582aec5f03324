package builtin

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// An Event lives in two groups under different field names: one object, stored
// as core v1 has it.

var (
	toCoreNames = map[string]string{
		"regarding":                "involvedObject",
		"note":                     "message",
		"reportingController":      "reportingComponent",
		"deprecatedSource":         "source",
		"deprecatedFirstTimestamp": "firstTimestamp",
		"deprecatedLastTimestamp":  "lastTimestamp",
		"deprecatedCount":          "count",
	}
	fromCoreNames = invert(toCoreNames)

	coreEvent = goType(&corev1.Event{}, &corev1.EventList{})
	newEvent  = goType(&eventsv1.Event{}, &eventsv1.EventList{})

	eventFields = append(fields("involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
		"involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
		"reason", "reportingComponent", "type"),
		resource.SelectableField{Name: "source", Path: []string{"source", "component"}, Otherwise: "reportingComponent"})
	newEventFields = fields("regarding.kind", "regarding.namespace", "regarding.name", "regarding.uid",
		"regarding.apiVersion", "regarding.resourceVersion", "regarding.fieldPath",
		"reason", "reportingController", "type")
)

func invert(m map[string]string) map[string]string {
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[v] = k
	}
	return out
}

// rename gives a copy of t with other names for its top fields.
func rename(t object.Tree, names map[string]string) object.Tree {
	out := make(object.Tree, len(t))
	for k, v := range t {
		out[orElse(names[k], k)] = v
	}
	return out
}

// toCoreEvent makes an Event of core v1 of one of events.k8s.io/v1, fromCoreEvent
// the other way round. Passing the Go type brings nulls and empty values into the form that the
// other version has them in.
func toCoreEvent(t object.Tree) (object.Tree, error) {
	return convertEvent(t, toCoreNames, coreEvent, corev1.SchemeGroupVersion.String())
}

func fromCoreEvent(t object.Tree) (object.Tree, error) {
	return convertEvent(t, fromCoreNames, newEvent, eventsv1.SchemeGroupVersion.String())
}

func convertEvent(t object.Tree, names map[string]string, to *resource.GoType, apiVersion string) (object.Tree, error) {
	renamed := rename(t, names)
	renamed["apiVersion"] = apiVersion
	out, _, err := to.Normalize(renamed)
	if err != nil {
		return nil, fmt.Errorf("builtin: convert Event to %s: %w", apiVersion, err)
	}
	return out, nil
}

func events(ttl time.Duration) resource.Behavior {
	return resource.Behavior{
		ValidateName: func(name string, prefix bool) []string {
			return path.ValidatePathSegmentName(name, prefix)
		},
		Validate: validateEvent,
		TTL:      int64(ttl / time.Second),
	}
}

const (
	maxEventText = 128 // of reason, action and reportingInstance
	maxEventNote = 1024
)

// validateEvent is what both endpoints demand. An event with an eventTime comes
// from a client of the newer API and is held to more.
func validateEvent(obj object.Tree) field.ErrorList {
	var errs field.ErrorList
	namespace, about := text(obj, "metadata", "namespace"), text(obj, "involvedObject", "namespace")
	var agrees bool
	if isZeroTime(obj, "eventTime") {
		agrees = namespace == about || about == "" && namespace == "default"
	} else {
		agrees = about != "" || namespace == "default" || namespace == "kube-system"
	}
	if !agrees {
		errs = append(errs, field.Invalid(field.NewPath("involvedObject", "namespace"), about, "does not match event.namespace"))
	}
	if !isZeroTime(obj, "eventTime") {
		errs = append(errs, validateEventTexts(obj)...)
	}
	for _, msg := range validation.IsDNS1123Subdomain(namespace) {
		errs = append(errs, field.Invalid(field.NewPath("namespace"), namespace, msg))
	}
	return errs
}

func validateEventTexts(obj object.Tree) field.ErrorList {
	var errs field.ErrorList
	controller := text(obj, "reportingComponent")
	if controller == "" {
		errs = append(errs, field.Required(field.NewPath("reportingController"), ""))
	}
	for _, msg := range validation.IsQualifiedName(controller) {
		errs = append(errs, field.Invalid(field.NewPath("reportingController"), controller, msg))
	}
	for _, name := range []string{"reportingInstance", "action", "reason"} {
		switch n := len(text(obj, name)); {
		case n == 0:
			errs = append(errs, field.Required(field.NewPath(name), ""))
		case n > maxEventText:
			errs = append(errs, field.Invalid(field.NewPath(name), "", fmt.Sprintf("can have at most %v characters", maxEventText)))
		}
	}
	if len(text(obj, "message")) > maxEventNote {
		errs = append(errs, field.Invalid(field.NewPath("message"), "", fmt.Sprintf("can have at most %v characters", maxEventNote)))
	}
	return errs
}

// validateNewEvent is what events.k8s.io/v1 demands on top.
func validateNewEvent(_, obj, old object.Tree, _ string) field.ErrorList {
	if old == nil {
		return validateNewEventCreate(obj)
	}
	var errs field.ErrorList
	if !object.Equal(obj["series"], old["series"]) {
		errs = append(errs, validateSeries(obj)...)
	}
	for _, name := range []string{"involvedObject", "reason", "message", "source", "firstTimestamp", "lastTimestamp", "count",
		"reason", "type", "eventTime", "action", "related", "reportingComponent", "reportingInstance"} {
		if !object.Equal(obj[name], old[name]) {
			shown := strings.Replace(name, "reportingComponent", "reportingController", 1)
			errs = append(errs, field.Invalid(field.NewPath(shown), obj[name], apivalidation.FieldImmutableErrorMsg))
		}
	}
	return errs
}

func validateNewEventCreate(obj object.Tree) field.ErrorList {
	var errs field.ErrorList
	if name := text(obj, "metadata", "name"); name != "" {
		for _, msg := range validateName(name, false) {
			errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), name, msg))
		}
	}
	errs = append(errs, validateSeries(obj)...)
	if isZeroTime(obj, "eventTime") {
		errs = append(errs, field.Required(field.NewPath("eventTime"), ""))
	}
	if kind := text(obj, "type"); kind != corev1.EventTypeNormal && kind != corev1.EventTypeWarning {
		errs = append(errs, field.Invalid(field.NewPath("type"), "", fmt.Sprintf("has invalid value: %v", kind)))
	}
	source := text(obj, "source", "component") + text(obj, "source", "host")
	for _, unset := range []struct {
		name string
		ok   bool
	}{
		{"firstTimestamp", isZeroTime(obj, "firstTimestamp")}, {"lastTimestamp", isZeroTime(obj, "lastTimestamp")},
		{"count", number(obj, "count") == 0}, {"source", source == ""},
	} {
		if !unset.ok {
			errs = append(errs, field.Invalid(field.NewPath(unset.name), "", "needs to be unset"))
		}
	}
	return errs
}

func validateSeries(obj object.Tree) field.ErrorList {
	series := tree(obj, "series")
	if series == nil {
		return nil
	}
	var errs field.ErrorList
	if number(series, "count") < 2 {
		errs = append(errs, field.Invalid(field.NewPath("series.count"), "", "should be at least 2"))
	}
	if isZeroTime(series, "lastObservedTime") {
		errs = append(errs, field.Required(field.NewPath("series.lastObservedTime"), ""))
	}
	return errs
}

func isZeroTime(t object.Tree, name string) bool { return text(t, name) == "" }
