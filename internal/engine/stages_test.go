package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/write"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// plugin is a fake admission plugin.
type plugin struct {
	admit, validate func(context.Context, *admission.Request) error
	reinvoke        bool
	ignores         []admission.Operation // operations that the plugin does not handle
}

func (p *plugin) Admit(ctx context.Context, r *admission.Request) error {
	if p.admit == nil {
		return nil
	}
	return p.admit(ctx, r)
}

func (p *plugin) Name() string { return "Test" }

func (p *plugin) Handles(r *admission.Request) bool { return !slices.Contains(p.ignores, r.Operation) }

func (p *plugin) Validate(ctx context.Context, r *admission.Request) error {
	if p.validate == nil {
		return nil
	}
	return p.validate(ctx, r)
}

func (p *plugin) Reinvoke() bool { return p.reinvoke }

const defaultingSchema = `{"type":"object","properties":{"spec":{"type":"object","default":{"image":"busybox"},
"required":["image"],"properties":{
"image":{"type":"string","default":"busybox"},"replicas":{"type":"integer","minimum":1}}},"status":{"type":"object",
"x-kubernetes-preserve-unknown-fields":true}}}`

// stageEffects holds a write for each stage, by the name of the stage. The write returns an error if the effect of
// the stage is missing.
var stageEffects = map[string]func(f *fixture) error{
	"decode": func(f *fixture) error {
		o, err := f.create(f.cron(""), `{"metadata":{"name":"a"},"spec":{}}`)
		return expectField(f, o, err, "spec.image", "busybox")
	},
	"locate": func(f *fixture) error {
		_, err := f.create(f.cron(""), `{"metadata":{"name":"a","namespace":"other"}}`)
		return expectError(err, "does not match the namespace sent on the request")
	},
	"limit": func(f *fixture) error {
		_, err := f.create(f.target("authorization.k8s.io", "v1", "selfsubjectaccessreviews", ""),
			`{"spec":{"resourceAttributes":{"labelSelector":{"requirements":[{}`+strings.Repeat(",{}", 100)+`]}}}}`)
		return expectError(err, "must have at most 100 items")
	},
	"managedFields": func(f *fixture) error {
		o, err := f.create(f.cron(""), `{"metadata":{"name":"a"},"spec":{"replicas":1}}`)
		if err != nil || len(managedFieldsOf(f, o)) != 1 {
			return fmt.Errorf("got %v and managedFields %v, want one entry", err, managedFieldsOf(f, o))
		}
		return nil
	},
	"mutate": func(f *fixture) error {
		t := f.cron("")
		t.Namespace = "absent"
		_, err := f.create(t, `{"metadata":{"name":"a"}}`)
		return expectError(err, `namespaces "absent" not found`)
	},
	"authorize": func(f *fixture) error {
		_, err := f.create(f.target("rbac.authorization.k8s.io", "v1", "roles", "default"),
			`{"metadata":{"name":"a"},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}`)
		return expectError(err, "is attempting to grant RBAC permissions not currently held")
	},
	"identify": func(f *fixture) error {
		o, err := f.create(f.cron(""), `{"metadata":{"name":"a","uid":"chosen",`+
			`"creationTimestamp":"1999-01-01T00:00:00Z"}}`)
		return expectField(f, o, err, "metadata.creationTimestamp", "2026-05-06T07:08:09Z")
	},
	"prepare": func(f *fixture) error {
		o, err := f.create(f.cron(""), `{"metadata":{"name":"a"},"status":{"set":"by a client"}}`)
		return expectField(f, o, err, "status", nil)
	},
	"find": func(f *fixture) error {
		if _, err := f.create(f.cron(""), `{"metadata":{"name":"a"}}`); err != nil {
			return err
		}
		other := types.UID("other")
		_, _, err := f.Delete(f.ctx, f.cron("a"),
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &other}}, f.caller)
		return expectError(err, "the UID in the precondition (other)")
	},
	"mark": func(f *fixture) error {
		if _, err := f.create(f.cron(""), `{"metadata":{"name":"a","finalizers":["example.com/wait"]}}`); err != nil {
			return err
		}
		_, deleted, err := f.Delete(f.ctx, f.cron("a"), metav1.DeleteOptions{}, f.caller)
		if err != nil || deleted {
			return fmt.Errorf("got %v, deleted %t, want only a mark", err, deleted)
		}
		return expectField(f, record.Object{}, nil, "metadata.deletionTimestamp", "2026-05-06T07:08:09Z")
	},
	"validate": func(f *fixture) error {
		_, err := f.create(f.cron(""), `{"metadata":{"name":"a"},"spec":{"replicas":0}}`)
		return expectError(err, "should be greater than or equal to 1")
	},
	"check": func(f *fixture) error {
		f.createPod("p")
		return expectError(f.bind("p", `{"metadata":{"name":"p"},"target":{"kind":"Pod","name":"m"}}`), "target.kind")
	},
	"act": func(f *fixture) error {
		f.createPod("p")
		if err := f.bind("p", `{"metadata":{"name":"p"},"target":{"name":"m"}}`); err != nil {
			return err
		}
		o, err := f.Get(f.ctx, f.pods("p"), "")
		return expectField(f, o, err, "spec.nodeName", "m")
	},
	"warn": func(f *fixture) error {
		f.warnings = nil
		_, err := f.create(f.cron(""), `{"metadata":{"name":"a","finalizers":["wait"]}}`)
		if err != nil || len(f.warnings) != 1 || !strings.Contains(f.warnings[0],
			"prefer a domain-qualified finalizer name") {
			return fmt.Errorf("got %v and warnings %q, want one about the finalizer", err, f.warnings)
		}
		return nil
	},
	"canonicalize": func(f *fixture) error {
		o, err := f.create(f.namespace(""), `{"metadata":{"generateName":"n-"}}`)
		if err != nil {
			return err
		}
		t, err := o.Tree()
		if name := object.Name(t); err == nil && object.String(object.Metadata(t)["labels"].(object.Tree),
			corev1.LabelMetadataName) != name {
			return fmt.Errorf("the label of %s has another name", name)
		}
		return err
	},
	"admit": func(f *fixture) error {
		f.Admission = admission.Plugins{&plugin{validate: func(context.Context,
			*admission.Request) error {
			return errors.New("not today")
		}}}
		_, err := f.create(f.cron(""), `{"metadata":{"name":"a"}}`)
		return expectError(err, "not today")
	},
	"review": func(f *fixture) error {
		o, err := f.create(f.target("authentication.k8s.io", "v1", "selfsubjectreviews", ""), `{}`)
		return expectField(f, o, err, "status.userInfo.username", "tester")
	},
	"convert": func(f *fixture) error {
		t := f.target("stable.example.com", "v2", "crontabs", "default")
		if _, err := f.create(t, `{"metadata":{"name":"a"}}`); err != nil {
			return err
		}
		if rec := f.Store.Head().Get(t.Version.Definition.Key("default", "a")); rec == nil ||
			!record.Packed(rec).HasAPIVersion("stable.example.com/v1") {
			return errors.New("not stored at the storage version")
		}
		return nil
	},
	"related": func(f *fixture) error {
		if _, err := f.create(f.service(""),
			`{"metadata":{"name":"s"},"spec":{"clusterIP":"10.0.0.7","ports":[{"port":80}]}}`); err != nil {
			return err
		}
		_, err := f.Get(f.ctx, f.ipAddress("10.0.0.7"), "")
		return err
	},
	"commit": func(f *fixture) error {
		if _, err := f.create(f.cron(""), `{"metadata":{"name":"a"}}`); err != nil {
			return err
		}
		_, err := f.Get(f.ctx, f.cron("a"), "")
		return err
	},
}

// expectField checks a field of o, the result of a write. If o is empty, it checks the stored CronTab "a".
func expectField(f *fixture, o record.Object, err error, path string, want any) error {
	if err != nil {
		return err
	}
	if o.Version == nil {
		if o, err = f.Get(f.ctx, f.cron("a"), ""); err != nil {
			return err
		}
	}
	tree, err := o.Tree()
	if got := valueAt(tree, path); err == nil && fmt.Sprint(got) != fmt.Sprint(want) {
		return fmt.Errorf("%s: got %v, want %v", path, got, want)
	}
	return err
}

func expectError(err error, text string) error {
	if err == nil || !strings.Contains(err.Error(), text) {
		return fmt.Errorf("got %v, want an error with %q", err, text)
	}
	return nil
}

func managedFieldsOf(f *fixture, o record.Object) []any {
	if o.Version == nil {
		return nil
	}
	entries, _ := object.Metadata(treeOf(f, o))["managedFields"].([]any)
	return entries
}

// runWithStages runs a write in a new fixture with only the given stages. It returns a panic as an error.
func runWithStages(t *testing.T, effect func(*fixture) error, some []write.Stage) (err error) {
	f := newFixture(t)
	f.writeCRD(cronTabs(defaultingSchema, defaultingSchema))
	all := write.Stages
	write.Stages = some
	defer func() {
		write.Stages = all
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return effect(f)
}

// TestAdmissionReplacementIsDefaulted checks that an object gets the defaults of its version after admission has
// replaced it.
func TestAdmissionReplacementIsDefaulted(t *testing.T) {
	f := newFixture(t)
	f.writeCRD(cronTabs(defaultingSchema, defaultingSchema))
	f.Admission = admission.Plugins{&plugin{admit: func(ctx context.Context, r *admission.Request) error {
		t, err := r.New(ctx, r.Version)
		if err == nil {
			delete(t["spec"].(object.Tree), "image")
			err = r.Replace(ctx, t, r.Version)
		}
		return err
	}}}
	o, err := f.create(f.cron(""), `{"metadata":{"name":"a"},"spec":{"image":"mine"}}`)
	if err := expectField(f, o, err, "spec.image", "busybox"); err != nil {
		t.Error(err)
	}
}

// TestEachStageIsNeeded checks that every stage is necessary. It removes one stage at a time, and the write in
// stageEffects must then fail.
func TestEachStageIsNeeded(t *testing.T) {
	for i, s := range write.Stages {
		effect := stageEffects[s.Name]
		if effect == nil {
			t.Errorf("stageEffects has no write for %s", s.Name)
			continue
		}
		if err := runWithStages(t, effect, write.Stages); err != nil {
			t.Errorf("%s: %v", s.Name, err)
		}
		if err := runWithStages(t, effect, slices.Delete(slices.Clone(write.Stages), i, i+1)); err == nil {
			t.Errorf("the effect of %s exists without the stage", s.Name)
		}
	}
}

// TestWritesEndWithTheirContext checks that a write starts no further stage and changes nothing after its client
// has disconnected.
func TestWritesEndWithTheirContext(t *testing.T) {
	f := newFixture(t)
	revision := f.Store.Head().Revision()
	ctx, cancel := context.WithCancel(f.ctx)
	f.Admission = admission.Plugins{&plugin{
		admit:    func(context.Context, *admission.Request) error { cancel(); return nil },
		validate: func(context.Context, *admission.Request) error { t.Error("a later stage was started"); return nil },
	}}
	f.ctx = ctx
	_, err := f.create(f.configMap(""), `{"metadata":{"name":"a"}}`)
	if !apierrors.IsTimeout(err) {
		t.Errorf("got %v, want a timeout", err)
	}
	equal(t, "revision", f.Store.Head().Revision(), revision)
}

// TestAdmissionOfEachVerb checks that every verb runs mutating and validating admission with the right operation,
// resource, name, user and objects.
func TestAdmissionOfEachVerb(t *testing.T) {
	f := newFixture(t)
	var seen []string
	record := func(stage string) func(context.Context, *admission.Request) error {
		return func(ctx context.Context, r *admission.Request) error {
			old, err := r.Old(ctx, r.Version)
			if err != nil {
				return err
			}
			next, err := r.New(ctx, r.Version)
			if err != nil {
				return err
			}
			seen = append(seen, fmt.Sprintf("%s %s %s%s %s by %s dry=%t old=%t new=%t", stage, r.Operation,
				r.Resource.Resource,
				strings.TrimSuffix("/"+r.Subresource, "/"), r.Name, r.User.GetName(), r.DryRun, old != nil,
				next != nil))
			return nil
		}
	}
	f.Admission = admission.Plugins{&plugin{admit: record("admit"), validate: record("validate")}}
	verb := func(name, operation, what string, old, next bool, do func() error) {
		t.Helper()
		seen = nil
		if err := do(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		line := func(stage string, old bool) string {
			return fmt.Sprintf("%s %s crontabs%s by tester dry=%t old=%t new=%t", stage, operation, what,
				f.caller.DryRun, old, next)
		}
		want := []string{line("admit", old), line("validate", old)}
		if !slices.Equal(seen, want) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, strings.Join(seen, "\n"), strings.Join(want, "\n"))
		}
	}
	verb("create", "CREATE", " a", false, true, func() error {
		_, err := f.create(f.cron(""), `{"metadata":{"name":"a"},"spec":{"replicas":1}}`)
		return err
	})
	verb("update", "UPDATE", " a", true, true, func() error {
		_, err := f.edit(f.cron("a"), func(t object.Tree) { set(t, "spec.image", "x") })
		return err
	})
	verb("status", "UPDATE", "/status a", true, true, func() error {
		_, err := f.edit(subresource(f.cron("a"), "status"), func(t object.Tree) { set(t, "status.phase", "x") })
		return err
	})
	verb("patch", "UPDATE", " a", true, true, func() error {
		_,
			err := f.patch(f.cron("a"), mergePatch, `{"spec":{"image":"y"}}`)
		return err
	})
	apply := `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":%q},"spec":{"color":"red"}}`
	verb("apply", "UPDATE", " a", true, true, func() error {
		_,
			err := f.patch(f.cron("a"), applyPatch, fmt.Sprintf(apply, "a"))
		return err
	})
	verb("apply of a missing object", "CREATE", " b", false, true,
		func() error { _, err := f.patch(f.cron("b"), applyPatch, fmt.Sprintf(apply, "b")); return err })
	verb("scale", "UPDATE", "/scale a", true, true, func() error {
		_, err := f.patch(subresource(f.cron("a"), "scale"), mergePatch, `{"spec":{"replicas":2}}`)
		return err
	})
	f.caller.DryRun = true
	verb("dry run", "DELETE", " a", true, false, func() error {
		_, _,
			err := f.Delete(f.ctx, f.cron("a"), metav1.DeleteOptions{}, f.caller)
		return err
	})
	f.caller.DryRun = false
	verb("delete", "DELETE", " a", true, false, func() error {
		_, _,
			err := f.Delete(f.ctx, f.cron("a"), metav1.DeleteOptions{}, f.caller)
		return err
	})
	verb("delete a collection", "DELETE", " ", true, false, func() error {
		_, err := f.DeleteCollection(f.ctx, f.cron(""), metav1.DeleteOptions{}, read.ListOptions{}, f.caller)
		return err
	})
}

// TestReinvocation checks that a plugin with Reinvoke is called again if a later plugin has changed the object.
func TestReinvocation(t *testing.T) {
	f := newFixture(t)
	calls := 0
	var reinvoked []bool
	first := &plugin{reinvoke: true, admit: func(_ context.Context, r *admission.Request) error {
		calls++
		reinvoked = append(reinvoked, r.Reinvoked)
		return nil
	}}
	second := &plugin{admit: func(ctx context.Context, r *admission.Request) error {
		tree, err := r.New(ctx, r.Version)
		if err != nil || r.Operation == admission.Delete {
			return err
		}
		set(tree, "spec.image", "changed")
		return r.Replace(ctx, tree, r.Version)
	}}
	f.Admission = admission.Plugins{first, second}
	equal(t, "image", valueAt(treeOf(t, f.mustCreate(f.cron(""), `{"metadata":{"name":"a"}}`)), "spec.image"),
		"changed")
	equal(t, "Reinvoked of each call", reinvoked, []bool{false, true})
	f.delete(f.cron("a"), metav1.DeleteOptions{})
	equal(t, "calls with the deletion", calls, 3)
}

// TestAdmissionReadsAreGuarded checks that a plugin gets the object at the version that it requests. The write is
// retried if an object that the plugin has read changes before the commit.
func TestAdmissionReadsAreGuarded(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.configMap(""), `{"metadata":{"name":"policy"}}`)
	v2 := f.target("stable.example.com", "v2", "crontabs", "default").Version
	attempts := 0
	f.Admission = admission.Plugins{&plugin{validate: func(ctx context.Context, r *admission.Request) error {
		if r.Version.Definition.Names.Plural != "crontabs" {
			return nil
		}
		tree, err := r.New(ctx, v2)
		if err != nil || object.String(tree, "apiVersion") != v2.APIVersion {
			return fmt.Errorf("got %v and apiVersion %s", err, object.String(tree, "apiVersion"))
		}
		policy := r.Read(f.policies(), "default", "policy")
		if attempts++; policy == nil {
			return apierrors.NewForbidden(r.Version.GroupResource(), r.Name, errors.New("there is no policy"))
		}
		if attempts == 1 { // the plugin has read the object before this deletion
			f.delete(f.configMap("policy"), metav1.DeleteOptions{})
		}
		return nil
	}}}
	_, err := f.create(f.cron(""), `{"metadata":{"name":"a"}}`)
	f.expectStatus(err, 403, metav1.StatusReasonForbidden, "there is no policy")
	equal(t, "attempts", attempts, 2)
}

// policies returns the definition of ConfigMaps. The policies of these tests are ConfigMaps.
func (f *fixture) policies() *resource.Definition { return f.configMap("").Version.Definition }

// TestAdmissionCannotMoveObject checks that a plugin cannot change the namespace or the name of an object. If the
// plugin changes the objects that it receives, the changes have no effect until it calls Replace.
func TestAdmissionCannotMoveObject(t *testing.T) {
	for message, change := range map[string]func(object.Tree){
		"does not match the namespace sent on the request": func(t object.Tree) {
			set(t, "metadata.namespace",
				"other")
		},
		"does not match the name on the URL": func(t object.Tree) { set(t, "metadata.name", "other") },
	} {
		f := newFixture(t)
		f.mustCreate(f.cron(""), `{"metadata":{"name":"a"}}`)
		f.Admission = admission.Plugins{&plugin{admit: func(ctx context.Context, r *admission.Request) error {
			tree, err := r.New(ctx, r.Version)
			if err == nil {
				change(tree)
				err = r.Replace(ctx, tree, r.Version)
			}
			return err
		}}}
		_, err := f.patch(f.cron("a"), mergePatch, `{"spec":{"image":"x"}}`)
		f.expectStatus(err, 400, metav1.StatusReasonBadRequest, message)
	}
	f := newFixture(t)
	f.Admission = admission.Plugins{&plugin{validate: func(ctx context.Context, r *admission.Request) error {
		tree, err := r.New(ctx, r.Version)
		if err == nil {
			set(tree, "spec.image", "changed")
		}
		return err
	}}}
	equal(t, "image", valueAt(treeOf(t, f.mustCreate(f.cron(""),
		`{"metadata":{"name":"a"},"spec":{"image":"mine"}}`)), "spec.image"), "mine")
}
