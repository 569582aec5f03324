package runtime

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	cri "k8s.io/cri-api/pkg/apis"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/trellis-k8s/trellis/cluster/internal/runtime/process"
)

// Images says which program or folder of this machine stands for which image.
type Images struct {
	root     string
	mappings []mapping

	mu   sync.Mutex
	seen map[string]image // by name, and by ID
}

var _ cri.ImageManagerService = &Images{}

type mapping struct {
	name *regexp.Regexp
	path string
}

// image is what stands for an image. The pause image has no path.
type image struct {
	name, path string
	folder     bool
	size       int64
}

const pauseImage = "registry.k8s.io/pause"

// NewImages reads mappings NAME=PATH, the first that fits counts. A * in a name stands for any letters, and a * in its
// path for the same; a name without a tag is that of all tags. root is the folder of the runtime.
func NewImages(root string, mappings ...string) (*Images, error) {
	i := &Images{root: root, seen: map[string]image{}}
	for _, m := range mappings {
		if err := i.add(m, ""); err != nil {
			return nil, err
		}
	}
	return i, nil
}

// AddFile adds the mappings of a file, one a line; # begins a comment. Paths are relative to the file's folder.
func (i *Images) AddFile(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("reading images: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if err := i.add(line, filepath.Dir(file)); err != nil {
			return fmt.Errorf("%s:%d: %w", file, n, err)
		}
	}
	return lines.Err()
}

func (i *Images) add(text, folder string) error {
	name, path, ok := strings.Cut(text, "=")
	if name, path = strings.TrimSpace(name), strings.TrimSpace(path); !ok || name == "" || path == "" {
		return fmt.Errorf("image %q: want NAME=PATH, for example gcr.io/my/app:1.0=./bin/app", text)
	}
	if strings.Count(path, "*") > strings.Count(name, "*") {
		return fmt.Errorf("image %q: the path has more * than the name", text)
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(folder, path)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	pattern := strings.ReplaceAll(regexp.QuoteMeta(name), `\*`, "(.*)")
	if last := name[strings.LastIndex(name, "/")+1:]; !strings.ContainsAny(last, ":@*") {
		pattern += "(?:[:@].*)?"
	}
	compiled, err := regexp.Compile("^" + pattern + "$")
	i.mappings = append(i.mappings, mapping{compiled, path})
	return err
}

// find finds what stands for an image, by its name or by the ID that it was given here.
func (i *Images) find(name string) (image, error) {
	i.mu.Lock()
	found, known := i.seen[name]
	i.mu.Unlock()
	if known {
		name = found.name
	}
	img := image{name: name}
	if short, _, _ := strings.Cut(name, ":"); short == pauseImage {
		return img, nil
	}
	short := strings.TrimPrefix(strings.TrimPrefix(name, "docker.io/"), "library/")
	for _, m := range i.mappings {
		for _, alias := range []string{name, short} {
			if parts := m.name.FindStringSubmatch(alias); parts != nil {
				return i.look(img, m.path, parts[1:])
			}
		}
	}
	return img, fmt.Errorf("no program stands for image %q: map one with trellis-cluster up --image %s=PATH", name, name)
}

// look looks at the file of a mapping, with what each * of the name stood for.
func (i *Images) look(img image, path string, stars []string) (image, error) {
	for _, star := range stars {
		if strings.Contains(star, "..") {
			return img, fmt.Errorf("image %q: .. has no place in a path", img.name)
		}
		path = strings.Replace(path, "*", star, 1)
	}
	img.path = path
	info, err := os.Stat(path)
	if err != nil {
		return img, fmt.Errorf("image %q stands for a program that is not there: %w", img.name, err)
	}
	img.folder, img.size = info.IsDir(), info.Size()
	if !img.folder && info.Mode()&0o111 == 0 {
		return img, fmt.Errorf("image %q stands for %s, which is no program: it may not be executed", img.name, path)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.seen[img.name], i.seen[img.id()] = img, img
	return img, nil
}

func (img image) id() string {
	if img.path == "" {
		return img.name
	}
	return "file://" + img.path
}

func (img image) describe() *v1.Image {
	return &v1.Image{
		Id: img.id(), RepoTags: []string{img.name}, Size: uint64(max(img.size, 1)), Uid: &v1.Int64Value{Value: nonRootUser},
		Spec: &v1.ImageSpec{Image: img.id(), UserSpecifiedImage: img.name}, Pinned: true,
	}
}

// command is the file to execute, and the argv, of a container.
func (img image) command(command, args []string) (program string, argv []string, err error) {
	argv = append(append(argv, command...), args...)
	switch {
	case img.path == "" && len(argv) == 0:
		return process.Pause, []string{process.Pause}, nil
	case img.path == "" || img.folder:
		if len(argv) == 0 {
			return "", nil, fmt.Errorf("image %q is a folder, %s: the pod must say which command to run", img.name, img.path)
		}
		return "", argv, nil
	case len(command) == 0:
		argv = append([]string{filepath.Base(img.path)}, args...)
	}
	return img.path, argv, nil
}

// ListImages lists what has been asked for.
func (i *Images) ListImages(context.Context, *v1.ImageFilter) ([]*v1.Image, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	var list []*v1.Image
	for key, img := range i.seen {
		if key == img.name {
			list = append(list, img.describe())
		}
	}
	return list, nil
}

// ImageStatus has no image where nothing stands for it: then it is pulled, which says why not.
func (i *Images) ImageStatus(_ context.Context, spec *v1.ImageSpec, _ bool) (*v1.ImageStatusResponse, error) {
	img, err := i.find(spec.GetImage())
	if err != nil {
		return &v1.ImageStatusResponse{}, nil
	}
	return &v1.ImageStatusResponse{Image: img.describe()}, nil
}

// PullImage finds what stands for an image.
func (i *Images) PullImage(_ context.Context, spec *v1.ImageSpec, _ *v1.AuthConfig, _ *v1.PodSandboxConfig) (string, error) {
	img, err := i.find(spec.GetImage())
	return img.id(), err
}

// RemoveImage leaves programs where they are.
func (i *Images) RemoveImage(context.Context, *v1.ImageSpec) error { return nil }

// ImageFsInfo says how full the disk of the runtime is. Images take none of it.
func (i *Images) ImageFsInfo(context.Context) (*v1.ImageFsInfoResponse, error) {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(i.root, &stat); err != nil {
		return nil, fmt.Errorf("looking at the disk of %s: %w", i.root, err)
	}
	usage := []*v1.FilesystemUsage{{
		Timestamp: time.Now().UnixNano(), FsId: &v1.FilesystemIdentifier{Mountpoint: i.root},
		UsedBytes: &v1.UInt64Value{}, InodesUsed: &v1.UInt64Value{},
	}}
	return &v1.ImageFsInfoResponse{ImageFilesystems: usage, ContainerFilesystems: usage}, nil
}

// Close has nothing to close.
func (i *Images) Close(context.Context) error { return nil }
