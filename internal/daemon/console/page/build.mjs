// Bundles src into dist, with the licences of what is bundled, and notes of what it was made (sums.sha256).
import { createHash } from "node:crypto";
import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const libraries = ["preact", "uplot"];
const notices = libraries.map((name) => {
  const { version } = JSON.parse(readFileSync(`node_modules/${name}/package.json`, "utf8"));
  return `${name} ${version}\n\n${readFileSync(`node_modules/${name}/LICENSE`, "utf8").trim()}\n`;
});

rmSync("dist", { recursive: true, force: true });
mkdirSync("dist");
const result = await build({
  entryPoints: { app: "src/main.tsx" }, outdir: "dist", bundle: true, minify: true, format: "esm", target: "es2022", metafile: true,
  jsx: "automatic", jsxImportSource: "preact", legalComments: "none",
  banner: { js: "// Licences of what is bundled here: licences.txt", css: "/* Licences of what is bundled here: licences.txt */" },
});
for (const input of Object.keys(result.metafile.inputs)) {
  const library = input.match(/^node_modules\/([^/]+)/)?.[1];
  if (library && !libraries.includes(library)) throw new Error(`${input}: add the licence of ${library}`);
}
for (const name of ["index.html", "icon.svg"]) cpSync(`src/${name}`, `dist/${name}`);
writeFileSync("dist/licences.txt", notices.join("\n----\n\n"));

const files = (folder) => readdirSync(folder).sort().map((name) => `${folder}/${name}`);
const sum = (name) => `${createHash("sha256").update(readFileSync(name)).digest("hex")}  ${name}\n`;
const made = ["build.mjs", "package.json", "package-lock.json", "tsconfig.json", ...files("src"), ...files("dist")];
writeFileSync("sums.sha256", made.map(sum).join(""));
