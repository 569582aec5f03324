package merge

import (
	"time"

	"github.com/trellis-k8s/trellis/internal/object"
)

// entry is an item of managedFields as it appears in an object.
type entry struct {
	owner
	fieldsType string
	fields     any // fieldsV1
	canonical  bool
}

func (e *entry) isZero() bool {
	return e.manager == "" && e.operation == "" && e.apiVersion == "" && e.subresource == "" &&
		e.time == "" && e.fieldsType == "" && e.fields == nil
}

// parseEntries decodes the items of managedFields. It returns false if v is not a list of entries whose members
// have the right types. Upstream ignores such a value completely.
func parseEntries(v any) ([]entry, bool) {
	list, ok := v.([]any)
	if !ok {
		return nil, false
	}
	out := make([]entry, len(list))
	for i := range list {
		t, ok := list[i].(object.Tree)
		if !ok || !out[i].parse(t) {
			return nil, false
		}
	}
	return out, true
}

// encodeEntries encodes entries in the form in which they were decoded. It omits members that upstream's type for
// entries does not have.
func encodeEntries(entries []entry) []any {
	list := make([]any, len(entries))
	for i := range entries {
		e := &entries[i]
		if e.canonical {
			list[i] = e.raw
			continue
		}
		t := object.Tree{}
		e.describe(t)
		object.SetString(t, "fieldsType", e.fieldsType)
		if e.fields != nil {
			t["fieldsV1"] = e.fields
		}
		list[i] = t
	}
	return list
}

func (e *entry) parse(t object.Tree) bool {
	e.raw = t
	e.canonical = true
	for key, v := range t {
		if v == nil {
			e.canonical = false
			continue
		}
		var target *string
		switch key {
		case "manager":
			target = &e.manager
		case "operation":
			target = &e.operation
		case "apiVersion":
			target = &e.apiVersion
		case "subresource":
			target = &e.subresource
		case "fieldsType":
			target = &e.fieldsType
		case "time":
			target = &e.time
		case "fieldsV1":
			e.fields = v
			continue
		default:
			e.canonical = false
			continue
		}
		if *target, _ = v.(string); *target == "" {
			if _, ok := v.(string); !ok {
				return false
			}
			e.canonical = false
		}
	}
	return e.normalizeTime()
}

// normalizeTime converts the time to the format that upstream writes. It returns false for an invalid time.
func (e *entry) normalizeTime() bool {
	if e.time == "" {
		_, isString := e.raw["time"].(string)
		return !isString
	}
	t, err := time.Parse(time.RFC3339, e.time)
	if err != nil {
		return false
	}
	if text := t.UTC().Format(time.RFC3339); text != e.time {
		e.time = text
		e.canonical = false
	}
	return true
}
