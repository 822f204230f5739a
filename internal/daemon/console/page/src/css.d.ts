// Stylesheets are for the bundler.
declare module "*.css";
