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
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// plugin is an admission plugin of a test.
type plugin struct {
	admit, validate func(context.Context, *admission.Request) error
	again           bool
	deaf            []admission.Operation // it does not handle these
}

func (p *plugin) Admit(ctx context.Context, r *admission.Request) error {
	if p.admit == nil {
		return nil
	}
	return p.admit(ctx, r)
}

func (p *plugin) Name() string { return "Test" }

func (p *plugin) Handles(r *admission.Request) bool { return !slices.Contains(p.deaf, r.Operation) }

func (p *plugin) Validate(ctx context.Context, r *admission.Request) error {
	if p.validate == nil {
		return nil
	}
	return p.validate(ctx, r)
}

func (p *plugin) Reinvoke() bool { return p.again }

const defaultingSchema = `{"type":"object","properties":{"spec":{"type":"object","default":{"image":"busybox"},"required":["image"],"properties":{
"image":{"type":"string","default":"busybox"},"replicas":{"type":"integer","minimum":1}}},"status":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}`

// shown says what is wrong with what a write has done, by the stage that it shows.
var shown = map[string]func(w *world) error{
	"decode": func(w *world) error {
		o, err := w.create(w.cron(""), `{"metadata":{"name":"a"},"spec":{}}`)
		return expect(w, o, err, "spec.image", "busybox")
	},
	"locate": func(w *world) error {
		_, err := w.create(w.cron(""), `{"metadata":{"name":"a","namespace":"other"}}`)
		return expectError(err, "does not match the namespace sent on the request")
	},
	"limit": func(w *world) error {
		_, err := w.create(w.at("authorization.k8s.io", "v1", "selfsubjectaccessreviews", ""),
			`{"spec":{"resourceAttributes":{"labelSelector":{"requirements":[{}`+strings.Repeat(",{}", 100)+`]}}}}`)
		return expectError(err, "must have at most 100 items")
	},
	"managedFields": func(w *world) error {
		o, err := w.create(w.cron(""), `{"metadata":{"name":"a"},"spec":{"replicas":1}}`)
		if err != nil || len(entriesOf(w, o)) != 1 {
			return fmt.Errorf("%v, %v", err, entriesOf(w, o))
		}
		return nil
	},
	"mutate": func(w *world) error {
		t := w.cron("")
		t.Namespace = "absent"
		_, err := w.create(t, `{"metadata":{"name":"a"}}`)
		return expectError(err, `namespaces "absent" not found`)
	},
	"authorize": func(w *world) error {
		_, err := w.create(w.at("rbac.authorization.k8s.io", "v1", "roles", "default"), `{"metadata":{"name":"a"},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}`)
		return expectError(err, "is attempting to grant RBAC permissions not currently held")
	},
	"identify": func(w *world) error {
		o, err := w.create(w.cron(""), `{"metadata":{"name":"a","uid":"chosen","creationTimestamp":"1999-01-01T00:00:00Z"}}`)
		return expect(w, o, err, "metadata.creationTimestamp", "2026-05-06T07:08:09Z")
	},
	"prepare": func(w *world) error {
		o, err := w.create(w.cron(""), `{"metadata":{"name":"a"},"status":{"set":"by a client"}}`)
		return expect(w, o, err, "status", nil)
	},
	"find": func(w *world) error {
		if _, err := w.create(w.cron(""), `{"metadata":{"name":"a"}}`); err != nil {
			return err
		}
		other := types.UID("other")
		_, _, err := w.Delete(w.ctx, w.cron("a"), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &other}}, w.caller)
		return expectError(err, "the UID in the precondition (other)")
	},
	"mark": func(w *world) error {
		if _, err := w.create(w.cron(""), `{"metadata":{"name":"a","finalizers":["example.com/wait"]}}`); err != nil {
			return err
		}
		_, gone, err := w.Delete(w.ctx, w.cron("a"), metav1.DeleteOptions{}, w.caller)
		if err != nil || gone {
			return fmt.Errorf("%v, gone: %t", err, gone)
		}
		return expect(w, Object{}, nil, "metadata.deletionTimestamp", "2026-05-06T07:08:09Z")
	},
	"validate": func(w *world) error {
		_, err := w.create(w.cron(""), `{"metadata":{"name":"a"},"spec":{"replicas":0}}`)
		return expectError(err, "should be greater than or equal to 1")
	},
	"check": func(w *world) error {
		w.pod("p")
		return expectError(w.bind("p", `{"metadata":{"name":"p"},"target":{"kind":"Pod","name":"m"}}`), "target.kind")
	},
	"act": func(w *world) error {
		w.pod("p")
		if err := w.bind("p", `{"metadata":{"name":"p"},"target":{"name":"m"}}`); err != nil {
			return err
		}
		o, err := w.Get(w.ctx, w.pods("p"), "")
		return expect(w, o, err, "spec.nodeName", "m")
	},
	"warn": func(w *world) error {
		w.warnings = nil
		_, err := w.create(w.cron(""), `{"metadata":{"name":"a","finalizers":["wait"]}}`)
		if err != nil || len(w.warnings) != 1 || !strings.Contains(w.warnings[0], "prefer a domain-qualified finalizer name") {
			return fmt.Errorf("%v, warnings %q", err, w.warnings)
		}
		return nil
	},
	"canonicalize": func(w *world) error {
		o, err := w.create(w.namespace(""), `{"metadata":{"generateName":"n-"}}`)
		if err != nil {
			return err
		}
		t, err := o.Tree()
		if name := object.Name(t); err == nil && object.String(object.Metadata(t)["labels"].(object.Tree), corev1.LabelMetadataName) != name {
			return fmt.Errorf("the label of %s says otherwise", name)
		}
		return err
	},
	"admit": func(w *world) error {
		w.Admission = admission.Plugins{&plugin{validate: func(context.Context, *admission.Request) error { return errors.New("not today") }}}
		_, err := w.create(w.cron(""), `{"metadata":{"name":"a"}}`)
		return expectError(err, "not today")
	},
	"review": func(w *world) error {
		o, err := w.create(w.at("authentication.k8s.io", "v1", "selfsubjectreviews", ""), `{}`)
		return expect(w, o, err, "status.userInfo.username", "tester")
	},
	"convert": func(w *world) error {
		t := w.at("stable.example.com", "v2", "crontabs", "default")
		if _, err := w.create(t, `{"metadata":{"name":"a"}}`); err != nil {
			return err
		}
		if rec := w.Store.Head().Get(t.Version.Definition.Key("default", "a")); rec == nil || apiVersion(rec) != "stable.example.com/v1" {
			return errors.New("not stored at the storage version")
		}
		return nil
	},
	"related": func(w *world) error {
		if _, err := w.create(w.service(""), `{"metadata":{"name":"s"},"spec":{"clusterIP":"10.0.0.7","ports":[{"port":80}]}}`); err != nil {
			return err
		}
		_, err := w.Get(w.ctx, w.ipAddress("10.0.0.7"), "")
		return err
	},
	"commit": func(w *world) error {
		if _, err := w.create(w.cron(""), `{"metadata":{"name":"a"}}`); err != nil {
			return err
		}
		_, err := w.Get(w.ctx, w.cron("a"), "")
		return err
	},
}

// expect compares a field of what a write has answered; of the stored object a where there is no answer.
func expect(w *world, o Object, err error, path string, want any) error {
	if err != nil {
		return err
	}
	if o.Version == nil {
		if o, err = w.Get(w.ctx, w.cron("a"), ""); err != nil {
			return err
		}
	}
	tree, err := o.Tree()
	if got := valueAt(tree, path); err == nil && fmt.Sprint(got) != fmt.Sprint(want) {
		return fmt.Errorf("%s is %v, not %v", path, got, want)
	}
	return err
}

func expectError(err error, text string) error {
	if err == nil || !strings.Contains(err.Error(), text) {
		return fmt.Errorf("got %v, want an error with %q", err, text)
	}
	return nil
}

func entriesOf(w *world, o Object) []any {
	if o.Version == nil {
		return nil
	}
	entries, _ := object.Metadata(treeOf(w, o))["managedFields"].([]any)
	return entries
}

// tried runs what shows a stage in a world of its own, with some of the stages.
func tried(t *testing.T, show func(*world) error, some []stage) (err error) {
	w := newWorld(t)
	w.writeCRD(cronTabs(defaultingSchema, defaultingSchema))
	whole := stages
	stages = some
	defer func() {
		stages = whole
		if p := recover(); p != nil {
			err = fmt.Errorf("a panic: %v", p)
		}
	}()
	return show(w)
}

// What admission puts in the place of an object gets the defaults of its version.
func TestReplacedHasDefaults(t *testing.T) {
	w := newWorld(t)
	w.writeCRD(cronTabs(defaultingSchema, defaultingSchema))
	w.Admission = admission.Plugins{&plugin{admit: func(ctx context.Context, r *admission.Request) error {
		t, err := r.New(ctx, r.Version)
		if err == nil {
			delete(t["spec"].(object.Tree), "image")
			err = r.Replace(ctx, t, r.Version)
		}
		return err
	}}}
	o, err := w.create(w.cron(""), `{"metadata":{"name":"a"},"spec":{"image":"mine"}}`)
	if err := expect(w, o, err, "spec.image", "busybox"); err != nil {
		t.Error(err)
	}
}

// Every stage does something that is missed without it.
func TestEachStage(t *testing.T) {
	for i, s := range stages {
		show := shown[s.name]
		if show == nil {
			t.Errorf("nothing shows what %s does", s.name)
			continue
		}
		if err := tried(t, show, stages); err != nil {
			t.Errorf("%s: %v", s.name, err)
		}
		if err := tried(t, show, slices.Delete(slices.Clone(stages), i, i+1)); err == nil {
			t.Errorf("%s can be taken out", s.name)
		}
	}
}

// A write whose client has disconnected starts no further stage and changes nothing.
func TestWritesEndWithTheirContext(t *testing.T) {
	w := newWorld(t)
	revision := w.Store.Head().Revision()
	ctx, cancel := context.WithCancel(w.ctx)
	w.Admission = admission.Plugins{&plugin{
		admit:    func(context.Context, *admission.Request) error { cancel(); return nil },
		validate: func(context.Context, *admission.Request) error { t.Error("a later stage was started"); return nil },
	}}
	w.ctx = ctx
	_, err := w.create(w.configMap(""), `{"metadata":{"name":"a"}}`)
	if !apierrors.IsTimeout(err) {
		t.Errorf("got %v, want a timeout", err)
	}
	equal(t, "revision", w.Store.Head().Revision(), revision)
}

// Every verb passes both stages of admission, with what plugins need to know.
func TestAdmissionOfEachVerb(t *testing.T) {
	w := newWorld(t)
	var seen []string
	note := func(stage string) func(context.Context, *admission.Request) error {
		return func(ctx context.Context, r *admission.Request) error {
			old, err := r.Old(ctx, r.Version)
			if err != nil {
				return err
			}
			next, err := r.New(ctx, r.Version)
			if err != nil {
				return err
			}
			seen = append(seen, fmt.Sprintf("%s %s %s%s %s by %s dry=%t old=%t new=%t", stage, r.Operation, r.Resource.Resource,
				strings.TrimSuffix("/"+r.Subresource, "/"), r.Name, r.User.GetName(), r.DryRun, old != nil, next != nil))
			return nil
		}
	}
	w.Admission = admission.Plugins{&plugin{admit: note("admit"), validate: note("validate")}}
	verb := func(name, operation, what string, old, next bool, f func() error) {
		t.Helper()
		seen = nil
		if err := f(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		line := func(stage string, old bool) string {
			return fmt.Sprintf("%s %s crontabs%s by tester dry=%t old=%t new=%t", stage, operation, what, w.caller.DryRun, old, next)
		}
		want := []string{line("admit", old), line("validate", old)}
		if !slices.Equal(seen, want) {
			t.Errorf("%s:\n%s\nwant\n%s", name, strings.Join(seen, "\n"), strings.Join(want, "\n"))
		}
	}
	verb("create", "CREATE", " a", false, true, func() error {
		_, err := w.create(w.cron(""), `{"metadata":{"name":"a"},"spec":{"replicas":1}}`)
		return err
	})
	verb("update", "UPDATE", " a", true, true, func() error {
		_, err := w.edit(w.cron("a"), func(t object.Tree) { set(t, "spec.image", "x") })
		return err
	})
	verb("status", "UPDATE", "/status a", true, true, func() error {
		_, err := w.edit(w.cron("a").sub("status"), func(t object.Tree) { set(t, "status.phase", "x") })
		return err
	})
	verb("patch", "UPDATE", " a", true, true, func() error { _, err := w.patch(w.cron("a"), merging, `{"spec":{"image":"y"}}`); return err })
	apply := `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":%q},"spec":{"color":"red"}}`
	verb("apply", "UPDATE", " a", true, true, func() error { _, err := w.patch(w.cron("a"), applying, fmt.Sprintf(apply, "a")); return err })
	verb("apply of what is not there", "CREATE", " b", false, true, func() error { _, err := w.patch(w.cron("b"), applying, fmt.Sprintf(apply, "b")); return err })
	verb("scale", "UPDATE", "/scale a", true, true, func() error {
		_, err := w.patch(w.cron("a").sub("scale"), merging, `{"spec":{"replicas":2}}`)
		return err
	})
	w.caller.DryRun = true
	verb("dry run", "DELETE", " a", true, false, func() error { _, _, err := w.Delete(w.ctx, w.cron("a"), metav1.DeleteOptions{}, w.caller); return err })
	w.caller.DryRun = false
	verb("delete", "DELETE", " a", true, false, func() error { _, _, err := w.Delete(w.ctx, w.cron("a"), metav1.DeleteOptions{}, w.caller); return err })
	verb("delete a collection", "DELETE", " ", true, false, func() error {
		_, err := w.DeleteCollection(w.ctx, w.cron(""), metav1.DeleteOptions{}, ListOptions{}, w.caller)
		return err
	})
}

// A plugin that says so is asked again about what one behind it has changed.
func TestReinvocation(t *testing.T) {
	w := newWorld(t)
	asked := 0
	var reinvoked []bool
	first := &plugin{again: true, admit: func(_ context.Context, r *admission.Request) error {
		asked++
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
	w.Admission = admission.Plugins{first, second}
	equal(t, "the image", valueAt(treeOf(t, w.mustCreate(w.cron(""), `{"metadata":{"name":"a"}}`)), "spec.image"), "changed")
	equal(t, "whether it was asked again", reinvoked, []bool{false, true})
	w.delete(w.cron("a"), metav1.DeleteOptions{})
	equal(t, "how often it was asked", asked, 3)
}

// A plugin sees objects at the version that it asks for, and what it relies on is a guard of the commit.
func TestAdmissionReliesOnWhatItReads(t *testing.T) {
	w := newWorld(t)
	w.mustCreate(w.configMap(""), `{"metadata":{"name":"policy"}}`)
	v2 := w.at("stable.example.com", "v2", "crontabs", "default").Version
	tries := 0
	w.Admission = admission.Plugins{&plugin{validate: func(ctx context.Context, r *admission.Request) error {
		if r.Version.Definition.Names.Plural != "crontabs" {
			return nil
		}
		tree, err := r.New(ctx, v2)
		if err != nil || object.String(tree, "apiVersion") != v2.APIVersion {
			return fmt.Errorf("%v, at %s", err, object.String(tree, "apiVersion"))
		}
		policy := r.Read(w.policies(), "default", "policy")
		if tries++; policy == nil {
			return apierrors.NewForbidden(r.Version.GroupResource(), r.Name, errors.New("there is no policy"))
		}
		if tries == 1 { // it goes after it has been read
			w.delete(w.configMap("policy"), metav1.DeleteOptions{})
		}
		return nil
	}}}
	_, err := w.create(w.cron(""), `{"metadata":{"name":"a"}}`)
	w.refused(err, 403, metav1.StatusReasonForbidden, "there is no policy")
	equal(t, "attempts", tries, 2)
}

func (w *world) policies() *resource.Definition { return w.configMap("").Version.Definition }

// A plugin cannot move an object to another namespace or name, and what it does with the trees that it gets is its own affair.
func TestPluginsKeepToTheObject(t *testing.T) {
	for what, change := range map[string]func(object.Tree){
		"does not match the namespace sent on the request": func(t object.Tree) { set(t, "metadata.namespace", "other") },
		"does not match the name on the URL":               func(t object.Tree) { set(t, "metadata.name", "other") },
	} {
		w := newWorld(t)
		w.mustCreate(w.cron(""), `{"metadata":{"name":"a"}}`)
		w.Admission = admission.Plugins{&plugin{admit: func(ctx context.Context, r *admission.Request) error {
			tree, err := r.New(ctx, r.Version)
			if err == nil {
				change(tree)
				err = r.Replace(ctx, tree, r.Version)
			}
			return err
		}}}
		_, err := w.patch(w.cron("a"), merging, `{"spec":{"image":"x"}}`)
		w.refused(err, 400, metav1.StatusReasonBadRequest, what)
	}
	w := newWorld(t)
	w.Admission = admission.Plugins{&plugin{validate: func(ctx context.Context, r *admission.Request) error {
		tree, err := r.New(ctx, r.Version)
		if err == nil {
			set(tree, "spec.image", "changed")
		}
		return err
	}}}
	equal(t, "the image", valueAt(treeOf(t, w.mustCreate(w.cron(""), `{"metadata":{"name":"a"},"spec":{"image":"mine"}}`)), "spec.image"), "mine")
}
